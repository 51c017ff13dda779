-- Takes tokens from a bucket without shards in one UPDATE that names the whole primary key, if the bucket covers `amount`.
-- Returns the balance that is left, or NULL if rate_limit_decide has to decide, as it has to if `amount` is NULL. It is for tables whose rows are spread over
-- nodes, where each statement is a message: see rate_limit_is_distributed.
CREATE OR REPLACE FUNCTION public.rate_limit_take_one(
  bucket_name text, bucket_key text, kind text, rate double precision, period bigint, capacity double precision, phase bigint,
  resolution integer, amount double precision
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := public.rate_limit_clock();
  balance double precision;
BEGIN
  IF amount IS NULL THEN
    RETURN NULL;
  END IF;
  UPDATE public.rate_limits AS r
  SET
    value = public.rate_limit_value_after(
      kind, r.value, r.ts, r.earlier_counts, greatest(now, r.ts), rate, period, capacity, phase, resolution, amount),
    ts = public.rate_limit_ts_after(kind, r.ts, greatest(now, r.ts), period, phase),
    idle_at = public.rate_limit_idle_after(
      kind, r.value, r.ts, r.earlier_counts, greatest(now, r.ts), rate, period, capacity, phase, resolution, amount),
    earlier_counts = public.rate_limit_counts_after(
      kind, r.value, r.ts, r.earlier_counts, greatest(now, r.ts), rate, period, phase, resolution)
  WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = 0 AND r.shards = 1
    AND public.rate_limit_fits(kind, r.earlier_counts, period, phase, resolution)
    AND public.rate_limit_left(
      kind, r.value, r.ts, r.earlier_counts, greatest(now, r.ts), rate, period, capacity, phase, resolution) >= amount
  RETURNING public.rate_limit_left(
    kind, r.value, r.ts, r.earlier_counts, greatest(now, r.ts), rate, period, capacity, phase, resolution) INTO balance;
  -- Another transaction may have locked the row without changing it. A decision as of a time before that wait would count the
  -- refill since then twice, so it is made again.
  IF balance IS NOT NULL AND public.rate_limit_clock() - now > public.rate_limit_late_after(1) THEN
    balance := public.rate_limit_retake(
      bucket_name, bucket_key, 0, kind, rate, period, capacity, phase, resolution, amount, amount, public.rate_limit_clock());
  END IF;
  RETURN balance;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_one IS 'Takes tokens from a bucket in one UPDATE, if it covers them.';
