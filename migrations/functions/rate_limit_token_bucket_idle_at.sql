-- rate_limit_token_bucket_idle_at(double precision, bigint, double precision, bigint, double precision)
-- SHA-256: 338c5777eb61c6d842b061261926f2b8cb401a07247805676319b7a9151dc461

-- Returns the time at which a bucket that holds `value` at `ts` is full.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_idle_at(
  value double precision, ts bigint, rate double precision, period bigint, capacity double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ts + least(greatest(pg_catalog.ceil((capacity - value) * period / rate), 0), 1e18)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_idle_at IS 'Returns when a token bucket is full; inlined.';
