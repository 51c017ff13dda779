-- rate_limit_sliding_window_left_at(double precision, bigint, double precision[], bigint, double precision, bigint, bigint, integer)
-- SHA-256: 936e8199f458a90ef9e9fba56debbdec58884e58eeb176d656e830c79a572f91

-- Returns what is left at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_left_at(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN public.rate_limit_sliding_window_left(
      public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution),
      rate,
      public.rate_limit_sliding_window_passed(now, period, phase, resolution))
    WHEN ts >= public.rate_limit_window_start(now, phase, period)
    THEN rate - value - earlier_counts[4] * (1 - public.rate_limit_sliding_window_passed(now, period, phase, 1))
    WHEN ts >= public.rate_limit_window_start(now, phase, period) - period
    THEN rate - value * (1 - public.rate_limit_sliding_window_passed(now, period, phase, 1))
    ELSE rate
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_left_at IS 'Returns what is left of a sliding window at a time; inlined.';
