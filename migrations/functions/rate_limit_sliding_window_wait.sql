-- rate_limit_sliding_window_wait(double precision, double precision, double precision[], double precision, double precision, bigint, double precision)
-- SHA-256: e92aa3bae33b09f60d4a95005ad1e3f55b3dc906744f77c284ded16959142767

-- Returns the microseconds from `now` until `missing` more is left, if nothing else is counted.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_wait(
  missing double precision, tolerance double precision, counts double precision[], left_now double precision,
  rate double precision, period bigint, passed double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  resolution CONSTANT integer := cardinality(counts) - 1;
  may_be_used CONSTANT double precision := rate - left_now - missing;
  whole double precision := 0; -- what counts whole in the sub-interval looked at
  leaving double precision;
BEGIN
  FOR nth IN 1 .. resolution LOOP
    whole := whole + counts[nth];
  END LOOP;
  -- In the sub-interval `steps` ahead, c[n - steps] is the one that leaves.
  FOR steps IN 0 .. resolution LOOP
    leaving := counts[resolution - steps + 1];
    IF steps = resolution THEN
      whole := 0;
    END IF;
    IF whole <= may_be_used + tolerance THEN
      IF leaving > 0 THEN
        RETURN ceil(
          (steps + greatest(least(1 - (may_be_used - whole) / leaving, 1), 0) - passed) * period / resolution
            - least(0.001, tolerance / 2 * period / resolution / leaving));
      END IF;
      RETURN ceil((steps - passed) * period / resolution - 0.001);
    END IF;
    whole := whole - counts[resolution - steps];
  END LOOP;
  RETURN NULL;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_wait IS 'Returns the time until so much is left of a sliding window.';
