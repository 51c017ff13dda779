-- rate_limit_idle_after(text, double precision, bigint, double precision[], bigint, double precision, bigint, double precision, bigint, integer, double precision)
-- SHA-256: 365860e7bc4c322d69d20f477f1379d0a357b570b0518a8e41dff6cde7fbb197

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
    ELSE public.rate_limit_calendar_window_idle_at(
      kind, public.rate_limit_calendar_window_value(kind, value, ts, now, rate, capacity) - amount, now, rate, period, capacity)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_idle_after IS 'Returns when a row is idle after tokens were taken; inlined.';
