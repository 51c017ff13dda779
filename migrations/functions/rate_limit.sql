-- rate_limit(text, text, text, double precision, interval, double precision, double precision, boolean, double precision, interval, integer, integer, timestamp with time zone)
-- SHA-256: e321e7b1139b77de62d5208c54f2511cd8871ec0bb5c56d741639f0ea1ff5f24

-- Takes `count` tokens, or returns when they would be available. A denial writes nothing. `value` is the balance that is
-- left. With more than two shards it is an estimate, unless the call was denied.
--   SELECT ok, retry_after, value FROM rate_limit('send_message', 'u1', kind => 'token_bucket', rate => 10, period => '1 minute');
CREATE OR REPLACE FUNCTION public.rate_limit(
  name text, key text, kind text, rate double precision, period interval, capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1, reserve boolean DEFAULT false, max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL, resolution integer DEFAULT NULL, shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL, OUT ok boolean, OUT retry_after interval, OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.value
  FROM public.rate_limit_single('limit', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s
$function$;
COMMENT ON FUNCTION public.rate_limit IS
  'Takes tokens from one bucket, or returns the time after which the call would be allowed.';
