-- Returns the balance of a token bucket after `amount` was taken at `now`. Not inlined: Citus copies and sends the text of each
-- expression of a statement with each execution, so a call is faster there than its expression.
CREATE OR REPLACE FUNCTION rate_limit._token_bucket_left(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision,
  amount double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
BEGIN
  RETURN rate_limit._token_bucket_value(value, ts, now, rate, period, capacity) - amount;
END
$function$;

-- Returns when a token bucket is full after `amount` was taken at `now`.
CREATE OR REPLACE FUNCTION rate_limit._token_bucket_full_at(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision,
  amount double precision
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
BEGIN
  RETURN rate_limit._token_bucket_idle_at(
    rate_limit._token_bucket_value(value, ts, now, rate, period, capacity) - amount, greatest(now, ts), rate, period,
    capacity);
END
$function$;

-- Takes tokens from a token bucket in one UPDATE, if it covers them. The bucket has no shards, and the UPDATE names the whole
-- primary key. Returns the balance that is left, or NULL if _decide has to decide. It is for tables with rows spread over nodes,
-- where each statement is a message: see _is_distributed.
CREATE OR REPLACE FUNCTION rate_limit._take_one(
  bucket_name text, bucket_key text, rate double precision, period bigint, capacity double precision, amount double precision
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := rate_limit._clock();
  balance double precision;
BEGIN
  UPDATE rate_limit.rate_limits AS r
  SET
    value = rate_limit._token_bucket_left(r.value, r.ts, now, rate, period, capacity, amount),
    ts = greatest(now, r.ts),
    idle_at = rate_limit._token_bucket_full_at(r.value, r.ts, now, rate, period, capacity, amount)
  WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
    AND rate_limit._token_bucket_left(r.value, r.ts, now, rate, period, capacity, amount) >= 0
  RETURNING r.value INTO balance;
  -- Another transaction may have locked the row without changing it. A decision as of a time before that wait would count the
  -- refill since then twice, so it is made again.
  IF balance IS NOT NULL AND rate_limit._clock() - now > rate_limit._late_after(1) THEN
    balance := rate_limit._retake(
      bucket_name, bucket_key, 0, 'token_bucket', rate, period, capacity, NULL, 1, amount, amount, rate_limit._clock());
  END IF;
  RETURN balance;
END
$function$;
