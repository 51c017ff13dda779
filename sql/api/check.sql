-- Decides like limit, and writes nothing.
CREATE OR REPLACE FUNCTION rate_limit.check(
  name text, key text, count double precision DEFAULT 1, reserve boolean DEFAULT false, OUT ok boolean, OUT retry_after interval,
  OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT c.ok, c.retry_after, c.value
  FROM rate_limit._call('check', key, rate_limit._definition(name, key), count, reserve, NULL) AS c
$function$;
