-- Lets the node that has a bucket run the functions that decide on this bucket alone: a call of its own, outside of a
-- transaction, is then one message to that node. Citus has sent the functions to all nodes when they were created. It can run
-- again, after functions were created or replaced.
DO $delegate$
DECLARE
  callable record;
BEGIN
  FOR callable IN
    SELECT p.oid::pg_catalog.regprocedure AS named, f.argument
    FROM (VALUES ('rate_limit', 'key'), ('rate_limit_check', 'key'), ('rate_limit_enforce', 'key'),
      ('rate_limit_block', 'key'), ('rate_limit_blocked', 'key'), ('rate_limit_acquire', 'key'),
      ('rate_limit_decide_one', 'bucket_key')) AS f (name, argument)
    JOIN pg_catalog.pg_proc AS p ON p.proname = f.name
      AND p.pronamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$public.$schema$, '.'))
    WHERE NOT EXISTS (
      SELECT
      FROM pg_catalog.pg_dist_object AS o
      WHERE o.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND o.objid = p.oid
        AND o.distribution_argument_index IS NOT NULL
    )
  LOOP
    PERFORM pg_catalog.create_distributed_function(
      callable.named, callable.argument, colocate_with => $name$public.rate_limits$name$);
  END LOOP;
END
$delegate$;
