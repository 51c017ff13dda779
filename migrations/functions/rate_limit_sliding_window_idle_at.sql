-- rate_limit_sliding_window_idle_at(double precision[], bigint, bigint, bigint, integer)
-- SHA-256: a88f33c7fa1f8c2004596cb16b45e573a16674926c44e93d5d760bcd4cd51ddf

-- Returns the time at which the last of these counts (c[0] to c[n] at `now`) leaves the window.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_idle_at(
  counts double precision[], now bigint, period bigint, phase bigint, resolution integer
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_now CONSTANT bigint := public.rate_limit_window_start(now, phase, period);
  steps bigint; -- sub-intervals from the start of the period until the newest count leaves
BEGIN
  FOR nth IN 1 .. resolution + 1 LOOP
    IF counts[nth] <> 0 THEN
      steps := (now - start_now) * resolution / period + resolution + 2 - nth;
      -- Whole periods are added separately, or the product could overflow. Parts are rounded up.
      RETURN start_now + steps / resolution * period + (steps % resolution * period + resolution - 1) / resolution;
    END IF;
  END LOOP;
  RETURN now;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_idle_at IS 'Returns when the counts of a sliding window have left it.';
