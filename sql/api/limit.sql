-- Takes `count` tokens under a stored limit, as limit_with does under the rule of the call. A gate denies while its key is
-- blocked.
--   SELECT ok, retry_after, value FROM rate_limit.limit('send_message', 'u1');
CREATE OR REPLACE FUNCTION rate_limit.limit(
  name text, key text, count double precision DEFAULT 1, reserve boolean DEFAULT false, OUT ok boolean, OUT retry_after interval,
  OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT c.ok, c.retry_after, c.value
  FROM rate_limit._call('limit', key, rate_limit._definition(name, key), count, reserve, NULL) AS c
$function$;
COMMENT ON FUNCTION rate_limit.limit IS
  'Takes tokens from one bucket of a stored limit, or returns the time after which the call would be allowed.';
