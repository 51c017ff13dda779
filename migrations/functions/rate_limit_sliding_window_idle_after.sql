-- rate_limit_sliding_window_idle_after(double precision, bigint, double precision[], bigint, double precision, bigint, bigint, integer, double precision)
-- SHA-256: ee023502577fe2b628a01e0de6c89b534a029ba319ab3d701079d3f75d3985cd

-- Returns the same after `amount` was taken from a row at `now`. The case n = 1 needs no counts.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_idle_after(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer, amount double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution = 1 AND amount > 0 THEN public.rate_limit_window_start(now, phase, period) + 2 * period
    ELSE public.rate_limit_sliding_window_idle_at(
      (public.rate_limit_sliding_window_value(value, ts, earlier_counts, now, period, phase, resolution) + amount)
        || (public.rate_limit_sliding_window_earlier(value, ts, earlier_counts, now, rate, period, phase, resolution))[4:],
      now, period, phase, resolution)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_idle_after IS
  'Returns when the counts of a sliding window have left it after tokens were taken; inlined.';
