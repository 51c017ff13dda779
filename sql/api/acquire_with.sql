-- Takes `count` slots of a concurrency limit that has `capacity` slots for each key, and holds them for `lease`, or until
-- rate_limit.release gives them back. A denial changes nothing; `retry_after` is the time after which enough leases have ended
-- at the latest. `lease_id` names the lease for rate_limit.release and rate_limit.renew; `value` is the number of free slots.
--   SELECT ok, lease_id FROM rate_limit.acquire_with('reports', 'u1', capacity => 3, lease => '5 minutes');
CREATE OR REPLACE FUNCTION rate_limit.acquire_with(
  name text, key text, capacity integer, lease interval DEFAULT '30 seconds', count integer DEFAULT 1, OUT ok boolean,
  OUT retry_after interval, OUT lease_id bigint, OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT a.ok, a.retry_after, a.lease_id, a.value
  FROM rate_limit._call(
    'acquire', key, rate_limit._rule(name, key, 'concurrency', capacity, lease, NULL, NULL, NULL, NULL, 1), count, false,
    NULL) AS a
$function$;
COMMENT ON FUNCTION rate_limit.acquire_with IS
  'Takes slots of a concurrency limit, or returns the time after which they are free at the latest.';
