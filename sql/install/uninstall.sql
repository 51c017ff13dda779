-- Drops the limiter's objects, with all balances and jobs, and nothing else: the schema may have objects of the application with
-- the same names. The limiter's functions have a hash in the records; its tables and views are those of the migrations that were
-- applied. If something else depends on one of them, none is dropped.
DO $uninstall$
DECLARE
  named CONSTANT text := pg_catalog.rtrim($schema$rate_limit.$schema$, '.');
  home CONSTANT oid := pg_catalog.to_regnamespace(named);
  -- The relations of each part, which the library fills in.
  core CONSTANT text[] := $core${}$core$;
  queue CONSTANT text[] := $queue${}$queue$;
  relations text[] := core;
  former_path CONSTANT text := pg_catalog.current_setting('search_path');
  statements text[];
  statement text;
BEGIN
  -- Signatures are recorded with the limiter's row types without their schema.
  PERFORM pg_catalog.set_config('search_path', pg_catalog.format('pg_catalog, %s, pg_temp', named), true);
  IF (
    SELECT pg_catalog.count(*)
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid AND c.relnamespace = home AND c.relkind = 'r'
    WHERE c.relname = 'objects' AND a.attname IN ('object', 'sha256', 'crate_version')
      OR c.relname = 'migrations' AND a.attname IN ('version', 'name', 'sha256', 'breaking', 'applied_by')
  ) < 8
  THEN
    RAISE NOTICE 'nothing is dropped: the schema % has no records of the rate limiter', named;
    PERFORM pg_catalog.set_config('search_path', former_path, true);
    RETURN;
  END IF;
  -- As after a restore of the definitions without the rows.
  IF NOT EXISTS (SELECT FROM rate_limit.migrations AS m WHERE m.version > 0)
    OR NOT EXISTS (SELECT FROM rate_limit.objects AS o WHERE o.sha256 IS NOT NULL)
  THEN
    RAISE NOTICE 'nothing is dropped: the records of the rate limiter in the schema % are empty', named
      USING HINT = 'Run "pg-limiter migrate", which records the objects, and then this SQL again.';
    PERFORM pg_catalog.set_config('search_path', former_path, true);
    RETURN;
  END IF;
  IF EXISTS (SELECT FROM rate_limit.migrations AS m WHERE m.name = 'queue') THEN
    relations := pg_catalog.array_cat(relations, queue);
  END IF;
  IF pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN -- Citus drops functions and tables in turn.
    PERFORM pg_catalog.set_config('citus.multi_shard_modify_mode', 'sequential', true);
  END IF;
  -- All of them first: a table cannot be dropped while it is read.
  statements := ARRAY(
    SELECT d.statement
    FROM (
      SELECT 1 AS step, pg_catalog.format('DROP VIEW %s.%I', named, c.relname) AS statement
      FROM pg_catalog.pg_class AS c
      WHERE c.relnamespace = home AND c.relkind = 'v' AND c.relname = ANY (relations)
      UNION ALL
      SELECT 2, pg_catalog.format('DROP FUNCTION %s.%s', named, o.object)
      FROM rate_limit.objects AS o
      WHERE o.sha256 IS NOT NULL AND pg_catalog.to_regprocedure(pg_catalog.format('%s.%s', named, o.object)) IS NOT NULL
      UNION ALL
      SELECT 3, pg_catalog.format('DROP SEQUENCE %s._test_clock', named) -- of a test clock
      FROM pg_catalog.pg_proc AS p
      WHERE p.pronamespace = home AND p.proname = '_clock' AND pg_catalog.strpos(p.prosrc, '_test_clock') > 0
      UNION ALL
      SELECT 4, pg_catalog.format('DROP TABLE %s.%I', named, c.relname)
      FROM pg_catalog.pg_class AS c
      WHERE c.relnamespace = home AND c.relkind = 'r' AND c.relname = ANY (relations)
    ) AS d
    ORDER BY d.step);
  FOREACH statement IN ARRAY statements LOOP
    EXECUTE statement;
  END LOOP;
  PERFORM pg_catalog.set_config('search_path', former_path, true);
END
$uninstall$;
