-- rate_limit_sliding_window_earlier(double precision, bigint, double precision[], bigint, double precision, bigint, bigint, integer)
-- SHA-256: c8a55c66889d7b18a038785f569a06dbadb2f1d3552f24a59b5bd238edf56e27

-- Returns `earlier_counts` at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_earlier(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ARRAY[period, phase, rate]::double precision[] || CASE
    WHEN resolution > 1
    THEN (public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution))[2:]
    ELSE ARRAY[
      public.rate_limit_two_counters_before(
        value, ts, earlier_counts, public.rate_limit_window_start(now, phase, period), period)]
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_earlier IS
  'Returns the earlier counts of a sliding window at a time; inlined.';
