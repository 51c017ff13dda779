-- Decides like limit_with, and writes nothing.
CREATE OR REPLACE FUNCTION rate_limit.check_with(
  name text, key text, kind text, rate double precision, period interval, capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1, reserve boolean DEFAULT false, max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL, resolution integer DEFAULT NULL, shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL, OUT ok boolean, OUT retry_after interval, OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT c.ok, c.retry_after, c.value
  FROM rate_limit._call(
    'check', key, rate_limit._rule(name, key, kind, rate, period, capacity, max_reserved, start, resolution, shards), count,
    reserve, at) AS c
$function$;
