-- rate_limit_sliding_window_credit(rate_limits, double precision)
-- SHA-256: 52969df79f63c774388865a662314671567e6e27982c3ea2c11c9c29a4d3bab8

-- Returns `bucket` with `count` tokens returned: subtracted from the newest counts first, and not below 0.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_credit(bucket public.rate_limits, count double precision) RETURNS public.rate_limits
LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  rest double precision := count - least(count, bucket.value);
  part double precision;
BEGIN
  bucket.value := bucket.value - least(count, bucket.value);
  FOR nth IN 4 .. cardinality(bucket.earlier_counts) LOOP
    EXIT WHEN rest <= 0;
    part := least(rest, bucket.earlier_counts[nth]);
    bucket.earlier_counts[nth] := bucket.earlier_counts[nth] - part;
    rest := rest - part;
  END LOOP;
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_credit IS 'Returns a row of a sliding window with tokens returned to it.';
