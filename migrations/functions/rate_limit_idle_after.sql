-- rate_limit_idle_after(text, double precision, bigint, double precision[], bigint, double precision, bigint, double precision, bigint, integer, double precision)
-- SHA-256: 5703637f71ef6ac2bf600c9f22e4598fcd2fbbad4ab21eeb14b6ad48266dbfe4

CREATE OR REPLACE FUNCTION public.rate_limit_idle_after(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer, amount double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket'
    THEN public.rate_limit_token_bucket_idle_at(
      public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount, now, rate, period, capacity)
    WHEN 'fixed_window'
    THEN public.rate_limit_fixed_window_idle_at(
      public.rate_limit_fixed_window_value(value, ts, now, rate, period, capacity, phase) - amount, now, rate, period, capacity, phase)
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_idle_after(
      value, ts, earlier_counts, now, rate, period, phase, resolution, amount)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_idle_after IS 'Returns when a row is idle after tokens were taken; inlined.';
