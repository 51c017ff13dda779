-- rate_limit_take_one(text, text, double precision, bigint, double precision, double precision)
-- SHA-256: 77d3d262fa99a525cb3861d7679e4c89098b51868516bb25cc0a6553c114588d

-- Takes tokens from a token bucket without shards in one UPDATE that names the whole primary key, if the bucket covers `amount`.
-- Returns the balance that is left, or NULL if rate_limit_decide has to decide. It is for tables whose rows are spread over
-- nodes, where each statement is a message: see rate_limit_is_distributed.
CREATE OR REPLACE FUNCTION public.rate_limit_take_one(
  bucket_name text, bucket_key text, rate double precision, period bigint, capacity double precision, amount double precision
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := public.rate_limit_clock();
  balance double precision;
BEGIN
  UPDATE public.rate_limits AS r
  SET
    value = public.rate_limit_token_bucket_left(r.value, r.ts, now, rate, period, capacity, amount),
    ts = greatest(now, r.ts),
    idle_at = public.rate_limit_token_bucket_full_at(r.value, r.ts, now, rate, period, capacity, amount)
  WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = 0 AND r.shards = 1 AND r.earlier_counts IS NULL
    AND public.rate_limit_token_bucket_left(r.value, r.ts, now, rate, period, capacity, amount) >= 0
  RETURNING r.value INTO balance;
  -- Another transaction may have locked the row without changing it. A decision as of a time before that wait would count the
  -- refill since then twice, so it is made again.
  IF balance IS NOT NULL AND public.rate_limit_clock() - now > public.rate_limit_late_after(1) THEN
    balance := public.rate_limit_retake(
      bucket_name, bucket_key, 0, 'token_bucket', rate, period, capacity, NULL, 1, amount, amount, public.rate_limit_clock());
  END IF;
  RETURN balance;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_one IS 'Takes tokens from a token bucket in one UPDATE, if it covers them.';
