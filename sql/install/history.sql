-- Creates the records: the numbered migrations that were applied, and every object of the limiter, for functions with the
-- hash of their definition. Each table is created only if it is missing. IF NOT EXISTS would accept a table that another role
-- has created meanwhile.
DO $history$
DECLARE
  there CONSTANT text[] := ARRAY(
    SELECT c.relname::text
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$public.$schema$, '.'))
      AND c.relname LIKE 'rate\_limit%' AND c.relkind IN ('r', 'p', 'v', 'S')
    UNION ALL
    SELECT
      -- Row types without their schema.
      pg_catalog.format('%s(%s)', p.proname, (
        SELECT pg_catalog.string_agg(
          CASE
            WHEN t.typname LIKE 'rate\_limit%' THEN t.typname
            WHEN t.typname LIKE '\_rate\_limit%' THEN pg_catalog.substr(t.typname, 2) || '[]'
            ELSE pg_catalog.format_type(t.oid, NULL)
          END,
          ', ' ORDER BY a.nth)
        FROM pg_catalog.unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (type, nth)
        JOIN pg_catalog.pg_type AS t ON t.oid = a.type
      ))
    FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$public.$schema$, '.'))
      AND p.proname LIKE 'rate\_limit%'
  );
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limits_objects$name$) IS NULL THEN
    CREATE TABLE public.rate_limits_objects (
      object text COLLATE "C" NOT NULL,
      sha256 text,
      crate_version text,
      recorded_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now(),
      CONSTRAINT rate_limits_objects_pkey PRIMARY KEY (object)
    );
    COMMENT ON TABLE public.rate_limits_objects IS
      'The objects of the limiter. An object without a row is new: all privileges on it but the owner''s are then revoked.';
    -- Objects from a release before this table keep the privileges that were granted on them.
    INSERT INTO public.rate_limits_objects (object) SELECT t.object FROM pg_catalog.unnest(there) AS t (object);
  ELSE
    -- An object that was dropped is new when it is created again.
    DELETE FROM public.rate_limits_objects AS o WHERE o.object <> ALL (there);
  END IF;
  IF pg_catalog.to_regclass($name$public.rate_limits_migrations$name$) IS NULL THEN
    CREATE TABLE public.rate_limits_migrations (
      version integer NOT NULL,
      name text NOT NULL,
      applied_at timestamp with time zone NOT NULL DEFAULT pg_catalog.now(),
      CONSTRAINT rate_limits_migrations_pkey PRIMARY KEY (version)
    );
    COMMENT ON TABLE public.rate_limits_migrations IS 'The numbered migrations that were applied.';
  END IF;
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($name$public.rate_limits_migrations$name$) AND a.attname = 'breaking'
  )
  THEN
    ALTER TABLE public.rate_limits_migrations
      ADD COLUMN sha256 text,
      ADD COLUMN crate_version text,
      ADD COLUMN breaking boolean NOT NULL DEFAULT false;
    COMMENT ON COLUMN public.rate_limits_migrations.sha256 IS
      'The hash of the migration''s text, with public as its schema. NULL: applied by a release that did not record it.';
    COMMENT ON COLUMN public.rate_limits_migrations.breaking IS 'Releases that do not know this version cannot use the schema.';
  END IF;
END
$history$;
