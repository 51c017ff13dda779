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
      -- Quotes can be left out. The schema can be the end of another schema's name, and a name the beginning of another name.
      AND pg_catalog.replace(p.prosrc, '"', '') ~ pg_catalog.format(
        '(^|[^[:alnum:]_$])%s(%s)($|[^[:alnum:]_$])',
        pg_catalog.regexp_replace(
          pg_catalog.replace($schema$rate_limit.$schema$, '"', ''), '([^[:alnum:]_])', $escaped$\\\1$escaped$, 'g'),
        pg_catalog.array_to_string(names, '|'))
    ORDER BY 1
  LOOP
    RAISE WARNING 'the function % calls the rate limiter, and fails from now on', caller
      USING HINT = 'Drop it with its triggers, or change it.';
  END LOOP;
END
$callers$;
