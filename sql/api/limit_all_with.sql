-- Takes tokens from several buckets, all or none. Each element of `calls` has the options of limit_with: name, key, kind, rate
-- and period, and optionally capacity, count, max_reserved, start, resolution and shards. It may also have `leave`, the
-- headroom: the call is allowed only if at least so many tokens are left in the bucket after it; `leave_fraction` is the same as
-- a fraction of the capacity. A concurrency limit has name, key, kind and capacity, and optionally count, lease and lease_id.
-- `reserve` applies to all elements, and none may leave tokens or take slots then. A denial writes nothing. `denied_by` names
-- the limits that denied the call; it is empty if the call was allowed. `retry_after` is the time until all of them would allow
-- the call, or the wait of a reservation. `limits` has one object for each element, in the order given: name, key, denied, and
-- as `value` the balance that is left; of a concurrency limit also `lease_id`, for rate_limit.release and rate_limit.renew. All
-- slots of a call have one lease.
--   SELECT ok, retry_after, denied_by, limits FROM rate_limit.limit_all_with('[
--     {"name": "per_user", "key": "u1", "kind": "token_bucket", "rate": 10, "period": "1 minute"},
--     {"name": "per_org", "key": "o7", "kind": "sliding_window", "rate": 1000, "period": "1 hour", "count": 2}]');
CREATE OR REPLACE FUNCTION rate_limit.limit_all_with(
  calls jsonb, reserve boolean DEFAULT false, OUT ok boolean, OUT retry_after interval, OUT denied_by text[], OUT limits jsonb
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.denied_by, s.limits
  FROM rate_limit._several('limit', calls, reserve) AS s
$function$;
COMMENT ON FUNCTION rate_limit.limit_all_with IS
  'Takes tokens from several buckets, all or none, or returns the time after which the call would be allowed.';
