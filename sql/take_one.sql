-- Returns the balance of a token bucket after `amount` was taken at `now`. Not inlined: Citus copies and sends the text of each
-- expression of a statement with each execution, so a call is faster there than its expression.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_left(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision,
  amount double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
BEGIN
  RETURN public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_left IS 'Returns the balance of a token bucket after tokens were taken.';

-- Returns when a token bucket is full after `amount` was taken at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_full_at(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision,
  amount double precision
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
BEGIN
  RETURN public.rate_limit_token_bucket_idle_at(
    public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount, greatest(now, ts), rate, period,
    capacity);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_full_at IS 'Returns when a token bucket is full after tokens were taken.';

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
