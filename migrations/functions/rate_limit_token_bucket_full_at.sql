-- rate_limit_token_bucket_full_at(double precision, bigint, bigint, double precision, bigint, double precision, double precision)
-- SHA-256: 256fa305ea064c7c074f71bb0ce91c014508c40953c0b993f40683802f487ac6

-- Returns when a token bucket is full after `amount` was taken at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_full_at(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision,
  amount double precision
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
BEGIN
  RETURN public.rate_limit_token_bucket_idle_at(
    public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount, greatest(now, ts), rate, period,
    capacity);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_full_at IS 'Returns when a token bucket is full after tokens were taken.';
