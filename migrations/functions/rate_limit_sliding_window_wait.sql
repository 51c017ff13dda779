-- rate_limit_sliding_window_wait(double precision, double precision, double precision[], double precision, double precision, bigint, double precision)
-- SHA-256: 899043c2f6e384a4b6aae38d7f59587ca03665b7097b43a45289d09b0402b7ba

-- Returns the microseconds from `now` until `missing` more tokens are left, if no other call takes any.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_wait(
  missing double precision, tolerance double precision, counts double precision[], left_now double precision,
  rate double precision, period bigint, passed double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  resolution CONSTANT integer := cardinality(counts) - 1;
  may_be_used CONSTANT double precision := rate - left_now - missing;
  whole double precision := 0; -- the sum of the counts that are fully in the window
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
COMMENT ON FUNCTION public.rate_limit_sliding_window_wait IS
  'Returns the time until so many more tokens are left in a sliding window.';
