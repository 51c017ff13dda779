-- token_bucket: `rate` tokens per `period` arrive continuously, up to `capacity`. `value` is the balance at `ts`.
-- Source: J. Turner, "New directions in communications (or which way to the information age?)", IEEE Communications
-- Magazine 24(10), 1986, stored as two numbers (value, ts) that are brought up to date when they are read, as in F. Pachot,
-- "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)", 2022, and in Convex's rate limiter.

-- Returns the balance at `now`.
CREATE OR REPLACE FUNCTION rate_limit._token_bucket_value(
  value double precision, ts bigint, now bigint, rate double precision, period double precision, capacity double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT least(value + greatest(now - ts, 0) * rate / period, capacity)
$function$;

-- Returns the time at which a bucket that holds `value` at `ts` is full.
CREATE OR REPLACE FUNCTION rate_limit._token_bucket_idle_at(
  value double precision, ts bigint, rate double precision, period double precision, capacity double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ts + least(greatest(pg_catalog.ceil((capacity - value) * period / rate), 0), 1e18)::bigint
$function$;

-- Returns the microseconds until the balance has grown by `missing`. The rounding stays below `tolerance`.
CREATE OR REPLACE FUNCTION rate_limit._token_bucket_wait(
  missing double precision, tolerance double precision, rate double precision, period double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT pg_catalog.ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate))
$function$;

-- Takes `amount` from one row of a bucket of so many shards, if the row covers it and the call has not waited for it. Returns
-- the row's balance, NULL if nothing was taken.
CREATE OR REPLACE FUNCTION rate_limit._update_token_bucket(
  bucket_name text, bucket_key text, part integer, shards integer, now bigint, rate double precision, period double precision,
  capacity double precision, amount double precision
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  balance double precision;
BEGIN
  UPDATE rate_limit.rate_limits AS r
  SET
    value = rate_limit._token_bucket_value(r.value, r.ts, now, rate, period, capacity) - amount,
    ts = greatest(now, r.ts),
    idle_at = rate_limit._token_bucket_idle_at(
      rate_limit._token_bucket_value(r.value, r.ts, now, rate, period, capacity) - amount, greatest(now, r.ts), rate, period,
      capacity)
  WHERE r.ctid = (
      SELECT s.ctid
      FROM rate_limit.rate_limits AS s
      WHERE s.name = bucket_name AND s.key = bucket_key AND s.shard BETWEEN part AND part
      ORDER BY s.shard DESC
      LIMIT 1
    )
    AND r.shards = shards AND rate_limit._clock() <= now + 1000 AND r.detail IS NULL
    AND rate_limit._token_bucket_value(r.value, r.ts, now, rate, period, capacity) >= amount
  RETURNING r.value INTO balance;
  RETURN balance;
END
$function$;

-- Decides one call on one token bucket without shards. It takes `count` tokens `times` times (`amount` in all) in one UPDATE, if
-- the bucket covers all of them. Returns {balance, microseconds that the call waited}; otherwise, what _hand_on returns.
--
-- Each expression of plpgsql is set up again in each transaction, which costs more than the UPDATE's expressions. So there are
-- as few as possible, and the UPDATE's WHERE also checks the arguments. It finds the row by a backward scan of the index,
-- because the newest version is at its end: while a transaction holds an old snapshot, versions pile up, and a forward scan
-- would visit all of them.
CREATE OR REPLACE FUNCTION rate_limit._take_token_bucket(
  bucket_name text, bucket_key text, rate double precision, period double precision, capacity double precision,
  amount double precision, count double precision, times integer
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_tidscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := rate_limit._clock();
  balance double precision;
  waited bigint;
BEGIN
  IF NOT rate_limit._is_distributed() THEN
    UPDATE rate_limit.rate_limits AS r
    SET
      value = rate_limit._token_bucket_value(r.value, r.ts, now, rate, period, capacity) - amount,
      ts = greatest(now, r.ts),
      idle_at = rate_limit._token_bucket_idle_at(
        rate_limit._token_bucket_value(r.value, r.ts, now, rate, period, capacity) - amount, greatest(now, r.ts), rate, period,
        capacity)
    WHERE r.ctid = (
        SELECT s.ctid
        FROM rate_limit.rate_limits AS s
        WHERE s.name = bucket_name AND s.key = bucket_key AND s.shard BETWEEN 0 AND 0
        ORDER BY s.shard DESC
        LIMIT 1
      )
      AND r.shards = 1 AND r.detail IS NULL
      AND rate_limit._token_bucket_value(r.value, r.ts, now, rate, period, capacity) >= amount
      AND rate_limit._can_take(rate, period, capacity, amount, count, times)
    RETURNING r.value, rate_limit._clock() - now INTO balance, waited;
    IF waited <= 2000 THEN
      RETURN ARRAY[balance, waited];
    END IF;
  END IF;
  RETURN rate_limit._hand_on(
    balance, waited, now, bucket_name, bucket_key, 'token_bucket', rate, period::bigint, capacity, NULL, amount, count, times);
END
$function$;
