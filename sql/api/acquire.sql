-- Takes `count` slots of a stored concurrency limit, as acquire_with does under the rule of the call.
--   SELECT ok, lease_id FROM rate_limit.acquire('reports', 'u1');
CREATE OR REPLACE FUNCTION rate_limit.acquire(
  name text, key text, count integer DEFAULT 1, OUT ok boolean, OUT retry_after interval, OUT lease_id bigint,
  OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT a.ok, a.retry_after, a.lease_id, a.value
  FROM rate_limit._call('acquire', key, rate_limit._definition(name, key), count, false, NULL) AS a
$function$;
COMMENT ON FUNCTION rate_limit.acquire IS
  'Takes slots of a stored concurrency limit, or returns the time after which they are free at the latest.';
