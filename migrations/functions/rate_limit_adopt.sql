-- rate_limit_adopt(text, rate_limits, bigint, double precision, bigint, double precision, bigint, integer)
-- SHA-256: 6e7046ec4a3467f6160437e07482fad1232ae0db783ed4020e50b2eb5381369a

-- Returns `bucket` as a row of this kind and grid. A row without `ts` means that the bucket has no row, so it is full.
CREATE OR REPLACE FUNCTION public.rate_limit_adopt(
  kind text, bucket public.rate_limits, now bigint, rate double precision, period bigint, capacity double precision,
  phase bigint, resolution integer
) RETURNS public.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  used double precision;
BEGIN
  IF bucket.ts IS NULL OR bucket.earlier_counts[1] < 0 THEN -- Slots of a concurrency limit are no tokens.
    bucket.ts := public.rate_limit_ts_after(kind, NULL, now, period, phase);
    bucket.value := CASE WHEN kind = 'sliding_window' THEN rate ELSE capacity END;
    bucket.earlier_counts := NULL;
  END IF;
  IF kind = 'sliding_window' THEN
    RETURN public.rate_limit_sliding_window_adopt(bucket, rate, period, phase, resolution);
  END IF;
  IF bucket.earlier_counts IS NOT NULL THEN -- The row is from a sliding window: the tokens it counted are spent.
    SELECT bucket.value + coalesce(sum(c), 0) INTO used FROM unnest(bucket.earlier_counts[4:]) AS c;
    bucket.value := capacity - used;
    bucket.earlier_counts := NULL;
  END IF;
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_adopt IS 'Returns a row, or no row, as a row of this kind and grid.';
