-- rate_limit_sliding_window_counts(double precision, bigint, double precision[], bigint, bigint, bigint, integer)
-- SHA-256: ac8e7d913d371724d0af3435526f88684aa955b6298ee41b73ce347de4b9ff35

-- Returns c[0] to c[n] at `now` for a row with this grid.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_counts(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_before CONSTANT bigint := public.rate_limit_window_start(ts, phase, period);
  start_now CONSTANT bigint := public.rate_limit_window_start(now, phase, period);
  -- The sub-intervals that have begun since `ts`. Two periods have the same effect as more, and cannot overflow.
  steps CONSTANT bigint := least(
    least((start_now - start_before) / period, 2) * resolution
      + (now - start_now) * resolution / period - (ts - start_before) * resolution / period,
    resolution + 1);
BEGIN
  IF steps <= 0 THEN
    RETURN value || earlier_counts[4:];
  END IF;
  RETURN array_fill(0::double precision, ARRAY[steps::integer]) || (value || earlier_counts[4:])[: resolution + 1 - steps];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_counts IS 'Returns the counts of a sliding window at a time.';
