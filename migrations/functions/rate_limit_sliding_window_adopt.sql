-- rate_limit_sliding_window_adopt(rate_limits, double precision, bigint, bigint, integer)
-- SHA-256: f675646e788a3a94c56115ffeeda6ce51258bb825288c95e75e8ccc7ef289b67

-- Returns `bucket` with its counts moved to this grid, if it has another one. All counts move to the newest sub-interval, so
-- that none leaves too early. In a row of another kind, the missing tokens count as used.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_adopt(
  bucket public.rate_limits, rate double precision, period bigint, phase bigint, resolution integer
) RETURNS public.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  earlier double precision;
BEGIN
  IF bucket.earlier_counts IS NULL THEN
    bucket.value := greatest(rate - bucket.value, 0);
  ELSIF cardinality(bucket.earlier_counts) = resolution + 3 AND bucket.earlier_counts[1] = period
    AND bucket.earlier_counts[2] = phase
  THEN
    bucket.earlier_counts[3] := rate;
    RETURN bucket;
  ELSE
    FOREACH earlier IN ARRAY bucket.earlier_counts[4:] LOOP
      bucket.value := bucket.value + earlier;
    END LOOP;
  END IF;
  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || array_fill(0::double precision, ARRAY[resolution]);
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_adopt IS 'Returns a row moved to the grid of a sliding window.';
