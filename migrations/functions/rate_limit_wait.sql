-- rate_limit_wait(text, rate_limits, double precision, double precision, double precision, bigint, double precision, bigint, bigint, integer)
-- SHA-256: 9d6a5e71c7b37d6318b75900702e149ce8de8d33fac32806f2641044e2a510d4

-- Returns the microseconds from `now` until the balance of a row, brought up to `now`, has grown by `missing`.
CREATE OR REPLACE FUNCTION public.rate_limit_wait(
  kind text, bucket public.rate_limits, missing double precision, tolerance double precision, left_now double precision,
  now bigint, rate double precision, period bigint, phase bigint, resolution integer
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF kind = 'token_bucket' THEN
    RETURN public.rate_limit_token_bucket_wait(missing, tolerance, rate, period);
  ELSIF kind = 'fixed_window' THEN
    RETURN public.rate_limit_fixed_window_wait(missing, tolerance, now, rate, period, phase);
  ELSIF kind = 'sliding_window' THEN
    RETURN public.rate_limit_sliding_window_wait(
      missing, tolerance, bucket.value || bucket.earlier_counts[4:], left_now, rate, period,
      public.rate_limit_sliding_window_passed(now, period, phase, resolution));
  END IF;
  RETURN public.rate_limit_calendar_window_wait(kind, missing, tolerance, now, rate, period);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_wait IS 'Returns the time until so many more tokens have arrived.';
