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

-- Returns the time at which a bucket that holds `value` at `ts` is full.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_idle_at(
  value double precision, ts bigint, rate double precision, period bigint, capacity double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ts + least(greatest(pg_catalog.ceil((capacity - value) * period / rate), 0), 1e18)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_idle_at IS 'Returns when a token bucket is full; inlined.';

-- Returns the microseconds until the balance has grown by `missing`. The rounding stays below `tolerance`.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_wait(
  missing double precision, tolerance double precision, rate double precision, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT pg_catalog.ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate))
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_wait IS 'Returns the time until a token bucket has refilled; inlined.';
