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

-- Returns the microseconds until the tokens of a reservation arrive; NULL if they have. It took `count` and left `balance`.
CREATE OR REPLACE FUNCTION rate_limit._token_bucket_reserved_wait(
  balance double precision, count double precision, rate double precision, period double precision, capacity double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN balance < - rate_limit._tolerance(capacity, balance + count)
    THEN least(
      rate_limit._token_bucket_wait(- balance, rate_limit._tolerance(capacity, balance + count), rate, period), 1e18)::bigint
  END
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
    IF waited <= rate_limit._late_after(1) THEN
      RETURN ARRAY[balance, waited];
    END IF;
  END IF;
  RETURN rate_limit._hand_on(
    balance, waited, now, bucket_name, bucket_key, 'token_bucket', rate, period::bigint, capacity, NULL, amount, count, times);
END
$function$;

-- Takes the tokens of one call from two token buckets without shards, both or none. The name and key of the first one come
-- first in the order of their bytes. Returns the balances; otherwise, what _take_few returns.
--
-- It first looks whether the second bucket covers its count, so that a denial writes nothing.
CREATE OR REPLACE FUNCTION rate_limit._take_two_token_buckets(
  name1 text, key1 text, rate1 double precision, period1 double precision, capacity1 double precision, count1 double precision,
  name2 text, key2 text, rate2 double precision, period2 double precision, capacity2 double precision, count2 double precision
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := rate_limit._clock();
  balance1 double precision;
  balance2 double precision;
  waited bigint;
  may_hold boolean := false;
BEGIN
  IF NOT rate_limit._is_distributed() THEN
    PERFORM
    FROM rate_limit.rate_limits AS r
    WHERE r.name = name2 AND r.key = key2 AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
      AND rate_limit._token_bucket_value(r.value, r.ts, now, rate2, period2, capacity2) >= count2
      AND rate_limit._can_take(rate2, period2, capacity2, count2, count2, 1);
    IF FOUND THEN
      UPDATE rate_limit.rate_limits AS r
      SET
        value = rate_limit._token_bucket_value(r.value, r.ts, now, rate1, period1, capacity1) - count1,
        ts = greatest(now, r.ts),
        idle_at = rate_limit._token_bucket_idle_at(
          rate_limit._token_bucket_value(r.value, r.ts, now, rate1, period1, capacity1) - count1, greatest(now, r.ts), rate1,
          period1, capacity1)
      WHERE r.name = name1 AND r.key = key1 AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
        AND rate_limit._token_bucket_value(r.value, r.ts, now, rate1, period1, capacity1) >= count1
        AND rate_limit._can_take(rate1, period1, capacity1, count1, count1, 1)
      RETURNING r.value INTO balance1;
      IF FOUND THEN
        UPDATE rate_limit.rate_limits AS r
        SET
          value = rate_limit._token_bucket_value(r.value, r.ts, now, rate2, period2, capacity2) - count2,
          ts = greatest(now, r.ts),
          idle_at = rate_limit._token_bucket_idle_at(
            rate_limit._token_bucket_value(r.value, r.ts, now, rate2, period2, capacity2) - count2, greatest(now, r.ts), rate2,
            period2, capacity2)
        WHERE r.name = name2 AND r.key = key2 AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
          AND rate_limit._token_bucket_value(r.value, r.ts, now, rate2, period2, capacity2) >= count2
        RETURNING r.value, rate_limit._clock() - now INTO balance2, waited;
        IF waited <= rate_limit._late_after(2) THEN
          RETURN ARRAY[balance1, balance2];
        END IF;
      END IF;
      -- An UPDATE that has waited for a row may have locked it without changing it. If there is no first row, none is locked.
      may_hold := EXISTS (
        SELECT
        FROM rate_limit.rate_limits AS r
        WHERE r.name = name1 AND r.key = key1 AND r.shard = 0
      );
    END IF;
  END IF;
  IF balance1 IS NOT NULL THEN -- It has waited (see _hand_on), or the second bucket has changed since the look.
    balance1 := rate_limit._retake(
      name1, key1, 0, 'token_bucket', rate1, period1::bigint, capacity1, NULL, 1, count1,
      CASE WHEN waited IS NULL THEN 0 ELSE count1 END, now + waited);
  END IF;
  IF waited IS NOT NULL THEN
    balance2 := rate_limit._retake(
      name2, key2, 0, 'token_bucket', rate2, period2::bigint, capacity2, NULL, 1, count2, count2, now + waited);
    RETURN ARRAY[balance1, balance2];
  END IF;
  RETURN rate_limit._take_few(
    ARRAY[name1, name2], ARRAY[key1, key2], ARRAY['token_bucket', 'token_bucket'], ARRAY[rate1, rate2],
    ARRAY[period1, period2]::bigint[], ARRAY[capacity1, capacity2], NULL, ARRAY[count1, count2], may_hold);
END
$function$;
