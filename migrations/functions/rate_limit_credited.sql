-- rate_limit_credited(text, rate_limits, double precision, double precision)
-- SHA-256: 59213e996bfc98496524a3dbb9e49b0a73debe85a2bd161f593627933d7ec144

-- Returns a row with `count` tokens returned to it. The row has to be up to date.
CREATE OR REPLACE FUNCTION public.rate_limit_credited(
  kind text, bucket public.rate_limits, count double precision, capacity double precision
) RETURNS public.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF kind = 'sliding_window' THEN
    RETURN public.rate_limit_sliding_window_credit(bucket, count);
  END IF;
  bucket.value := least(bucket.value + count, capacity);
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_credited IS 'Returns a row with tokens returned to it.';
