-- rate_limit_token_bucket_value(double precision, bigint, bigint, double precision, bigint, double precision)
-- SHA-256: 205591a6aecbff4778f335abc0574bd456cc9ad0e942ae53ea667ca00634c920

-- token_bucket: `rate` tokens per `period` arrive continuously, up to `capacity`. `value` is the balance at `ts`.
-- Source: J. Turner, "New directions in communications (or which way to the information age?)", IEEE Communications
-- Magazine 24(10), 1986, stored as two numbers (value, ts) that are brought up to date when they are read, as in F. Pachot,
-- "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)", 2022, and in Convex's rate limiter.

-- Returns the balance at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_value(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT least(value + greatest(now - ts, 0)::double precision * rate / period, capacity)
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_value IS 'Returns the balance of a token bucket at a time; inlined.';
