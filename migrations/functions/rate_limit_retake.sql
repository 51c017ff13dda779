-- rate_limit_retake(text, text, integer, text, double precision, bigint, double precision, bigint, integer, double precision, double precision, bigint)
-- SHA-256: 1ca986d541b6dc07dd98c329f0d75790be8140b9ff95e1f56d9fe0945856205b

-- Undoes an UPDATE that took `taken` tokens from a row, and takes `amount` instead, as of `at`, or of the time of that UPDATE
-- if `at` is NULL. The caller has locked the row. Returns the balance that is left.
CREATE OR REPLACE FUNCTION public.rate_limit_retake(
  bucket_name text, bucket_key text, nth_shard integer, kind text, rate double precision, period bigint,
  capacity double precision, phase bigint, resolution integer, taken double precision, amount double precision, at bigint
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  bucket public.rate_limits;
  again record;
BEGIN
  SELECT r.* INTO bucket FROM public.rate_limits AS r WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard;
  again := public.rate_limit_take_from(kind, bucket, bucket.ts, rate, period, capacity, phase, resolution, - taken);
  again := public.rate_limit_take_from(
    kind, again.after, greatest(at, bucket.ts), rate, period, capacity, phase, resolution, amount);
  PERFORM public.rate_limit_write(again.after, again.after, false);
  RETURN again.remaining;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_retake IS 'Replaces the tokens that were just taken from a locked row.';
