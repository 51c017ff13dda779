-- Warns of functions outside of the limiter that call it: PostgreSQL does not know what a function calls, so they stay, and fail
-- from now on. Reads system catalogs only.
DO $callers$
DECLARE
  -- The names of the limiter's objects, which the library fills in.
  names CONSTANT text[] := $names${}$names$;
  caller text;
BEGIN
  FOR caller IN
    SELECT p.oid::pg_catalog.regprocedure::text
    FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_language AS l ON l.oid = p.prolang AND l.lanname NOT IN ('c', 'internal')
    WHERE p.pronamespace <> pg_catalog.to_regnamespace('pg_catalog')
      AND NOT (
        p.pronamespace = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
        AND p.proname = ANY (names)
      )
      AND EXISTS (
        SELECT FROM pg_catalog.unnest(names) AS n (name)
        -- Quotes can be left out.
        WHERE pg_catalog.strpos(
          pg_catalog.replace(p.prosrc, '"', ''), pg_catalog.replace($schema$rate_limit.$schema$, '"', '') || n.name) > 0
      )
    ORDER BY 1
  LOOP
    RAISE WARNING 'the function % calls the rate limiter, and fails from now on', caller
      USING HINT = 'Drop it with its triggers, or change it.';
  END LOOP;
END
$callers$;
