-- rate_limit_sliding_window_left(double precision[], double precision, double precision)
-- SHA-256: 9a1591f28613f4cab52f86c6d9f95cea16e60a51a497bb0388c6b2414511dedf

-- Returns what these counts leave of `rate`. The last count is that of the oldest sub-interval.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_left(
  counts double precision[], rate double precision, passed double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  used double precision := counts[cardinality(counts)] * (1 - passed);
BEGIN
  FOR nth IN 1 .. cardinality(counts) - 1 LOOP
    used := used + counts[nth];
  END LOOP;
  RETURN rate - used;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_left IS 'Returns what is left of a sliding window with these counts.';
