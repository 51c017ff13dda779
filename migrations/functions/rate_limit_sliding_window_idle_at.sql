-- rate_limit_sliding_window_idle_at(double precision[], bigint, bigint, bigint, integer)
-- SHA-256: 1c530819c52be110e6867e5f3e0153342413ba28f9c75d8445ac955687ce6c55

-- Returns the time from which none of these counts (c[0] to c[n] at `now`) is in the window.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_idle_at(
  counts double precision[], now bigint, period bigint, phase bigint, resolution integer
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_now CONSTANT bigint := public.rate_limit_window_start(now, phase, period);
  steps bigint; -- sub-intervals from the start of the period until the newest count has left
BEGIN
  FOR nth IN 1 .. resolution + 1 LOOP
    IF counts[nth] <> 0 THEN
      steps := (now - start_now) * resolution / period + resolution + 2 - nth;
      -- Whole periods apart, or the product would not fit; parts are rounded up.
      RETURN start_now + steps / resolution * period + (steps % resolution * period + resolution - 1) / resolution;
    END IF;
  END LOOP;
  RETURN now;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_idle_at IS 'Returns when the counts of a sliding window have left it.';
