-- Takes tokens under several stored limits, all or none. An element has name and key, and optionally `count`, `leave`,
-- `leave_fraction` and `lease_id`; all else is as in limit_all_with.
--   SELECT ok, retry_after, denied_by, limits
--   FROM rate_limit.limit_all('[{"name": "per_user", "key": "u1"}, {"name": "per_org", "key": "o7", "count": 2}]');
CREATE OR REPLACE FUNCTION rate_limit.limit_all(
  calls jsonb, reserve boolean DEFAULT false, OUT ok boolean, OUT retry_after interval, OUT denied_by text[], OUT limits jsonb
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.denied_by, s.limits
  FROM rate_limit._several('limit', rate_limit._defined(calls), reserve) AS s
$function$;
