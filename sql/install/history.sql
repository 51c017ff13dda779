-- Creates the records: the migrations that were applied, and every object of the limiter, for functions with the
-- hash of their definition. Each table is created only if it is missing. IF NOT EXISTS would accept a table that another role
-- has created meanwhile.
DO $history$
DECLARE
  is_unrecorded boolean := pg_catalog.to_regclass($name$rate_limit.objects$name$) IS NULL;
  -- The names of the limiter's objects, which the library fills in. Empty: all objects of the schema.
  names CONSTANT text[] := $names${}$names$;
  -- All objects of the schema: newer releases have more names.
  there CONSTANT text[] := ARRAY(
    SELECT c.relname::text
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
      AND c.relkind IN ('r', 'p', 'v', 'S')
    UNION ALL
    SELECT
      -- Row types without their schema.
      pg_catalog.format('%s(%s)', p.proname, (
        SELECT pg_catalog.string_agg(
          CASE
            WHEN t.typnamespace <> p.pronamespace THEN pg_catalog.format_type(t.oid, NULL)
            ELSE coalesce(e.typname || '[]', t.typname)
          END,
          ', ' ORDER BY a.nth)
        FROM pg_catalog.unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (type, nth)
        JOIN pg_catalog.pg_type AS t ON t.oid = a.type
        LEFT JOIN pg_catalog.pg_type AS e ON e.typarray = t.oid
      ))
    FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
  );
BEGIN
  IF is_unrecorded THEN
    CREATE TABLE rate_limit.objects (
      object text COLLATE "C" NOT NULL,
      sha256 text,
      crate_version text,
      recorded_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now(),
      CONSTRAINT objects_pkey PRIMARY KEY (object)
    );
    COMMENT ON TABLE rate_limit.objects IS
      'The objects of the limiter. An object without a row is new: all privileges on it but the owner''s are then revoked.';
  ELSE
    -- An object that was dropped is new when it is created again.
    DELETE FROM rate_limit.objects AS o WHERE o.object <> ALL (there);
  END IF;
  IF pg_catalog.to_regclass($name$rate_limit.migrations$name$) IS NULL THEN
    CREATE TABLE rate_limit.migrations (
      version integer NOT NULL,
      name text COLLATE "C" NOT NULL,
      sha256 text NOT NULL,
      crate_version text NOT NULL,
      breaking boolean NOT NULL DEFAULT false,
      applied_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now(),
      applied_by text COLLATE "C" NOT NULL DEFAULT current_user,
      CONSTRAINT migrations_pkey PRIMARY KEY (version, name)
    );
    COMMENT ON TABLE rate_limit.migrations IS 'The migrations that were applied. A version has one or several.';
    COMMENT ON COLUMN rate_limit.migrations.sha256 IS 'The hash of the migration''s text for the default schema.';
    COMMENT ON COLUMN rate_limit.migrations.crate_version IS 'The release that applied it.';
    COMMENT ON COLUMN rate_limit.migrations.applied_by IS 'The role that applied it, which owned the objects then.';
    COMMENT ON COLUMN rate_limit.migrations.breaking IS 'Releases that do not know this version cannot use the schema.';
  END IF;
  -- After a restore of the definitions without the rows, both tables are empty. If only `objects` is empty, a migration was
  -- interrupted before it revoked the privileges on new objects.
  is_unrecorded := is_unrecorded
    OR NOT EXISTS (SELECT FROM rate_limit.objects) AND NOT EXISTS (SELECT FROM rate_limit.migrations);
  -- Existing objects keep the privileges that were granted on them: the restored ones, and objects of the application with such
  -- names. The tables of records count as new, so that every role can read them afterwards.
  INSERT INTO rate_limit.objects (object)
  SELECT t.object
  FROM pg_catalog.unnest(there) AS t (object)
  WHERE is_unrecorded AND t.object NOT IN ('objects', 'migrations')
    AND (names = '{}' OR pg_catalog.split_part(t.object, '(', 1) = ANY (names))
  ON CONFLICT (object) DO NOTHING;
END
$history$;
