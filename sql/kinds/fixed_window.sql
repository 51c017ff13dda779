-- fixed_window: `rate` tokens are granted at the start of each window of length `period`; unused tokens roll over up to
-- `capacity`. `value` is the balance at `ts`.
-- The grid of windows is absolute, w(t) = floor((t - phase) / period): it is the same in every process, and after the row was
-- deleted. Without `start` the phase is derived from the bucket, so that the windows of many keys do not end together.
-- Source: the fixed window of Convex's rate limiter, with the grid made absolute.

-- Returns where the windows of a fixed window without a start begin. It is derived from the bucket, so every process gets the
-- same one.
CREATE OR REPLACE FUNCTION rate_limit._phase(bucket_name text, bucket_key text) RETURNS bigint LANGUAGE sql STABLE
AS $function$
  SELECT ('x' || pg_catalog.substr(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
    bucket_name || ':' || bucket_key, 'UTF8')), 'hex'), 1, 14))::bit(56)::bigint
$function$;

-- Returns the start of the window that contains `at`. It applies % twice, because the remainder of a negative number is
-- negative.
CREATE OR REPLACE FUNCTION rate_limit._window_start(at bigint, phase bigint, period bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT at - ((at - phase % period) % period + period) % period
$function$;

-- Returns the balance at `now`.
CREATE OR REPLACE FUNCTION rate_limit._fixed_window_value(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision, phase bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT least(
    value + rate * greatest(
      (rate_limit._window_start(now, phase, period) - rate_limit._window_start(ts, phase, period)) / period, 0),
    capacity)
$function$;

-- Returns the time at which a bucket that holds `value` in the window of `now` will be full.
CREATE OR REPLACE FUNCTION rate_limit._fixed_window_idle_at(
  value double precision, now bigint, rate double precision, period bigint, capacity double precision, phase bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT rate_limit._window_start(now, phase, period)
    + least(greatest(pg_catalog.ceil((capacity - value) / rate - 1e-9), 0) * period, 1e18)::bigint
$function$;

-- Returns the microseconds from `now` until the balance has grown by `missing`.
CREATE OR REPLACE FUNCTION rate_limit._fixed_window_wait(
  missing double precision, tolerance double precision, now bigint, rate double precision, period bigint, phase bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT rate_limit._window_start(now, phase, period) - now
    + greatest(pg_catalog.ceil((missing - tolerance) / rate), 1) * period
$function$;

-- Takes tokens from one row of a window, as _update_token_bucket does from a bucket.
CREATE OR REPLACE FUNCTION rate_limit._update_fixed_window(
  bucket_name text, bucket_key text, part integer, shards integer, now bigint, rate double precision, period bigint,
  capacity double precision, phase bigint, amount double precision
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  balance double precision;
BEGIN
  UPDATE rate_limit.rate_limits AS r
  SET
    value = rate_limit._fixed_window_value(r.value, r.ts, greatest(now, r.ts), rate, period, capacity, phase) - amount,
    ts = greatest(now, r.ts),
    idle_at = rate_limit._fixed_window_idle_at(
      rate_limit._fixed_window_value(r.value, r.ts, greatest(now, r.ts), rate, period, capacity, phase) - amount,
      greatest(now, r.ts), rate, period, capacity, phase)
  WHERE r.ctid = (
      SELECT s.ctid
      FROM rate_limit.rate_limits AS s
      WHERE s.name = bucket_name AND s.key = bucket_key AND s.shard BETWEEN part AND part
      ORDER BY s.shard DESC
      LIMIT 1
    )
    AND r.shards = shards AND rate_limit._clock() <= now + 1000 AND r.detail IS NULL
    AND rate_limit._fixed_window_value(r.value, r.ts, greatest(now, r.ts), rate, period, capacity, phase) >= amount
  RETURNING r.value INTO balance;
  RETURN balance;
END
$function$;

-- Takes tokens from a window without shards, as _take_token_bucket does from a bucket. `phase` is the start of a window.
CREATE OR REPLACE FUNCTION rate_limit._take_fixed_window(
  bucket_name text, bucket_key text, rate double precision, period bigint, capacity double precision, phase bigint,
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
      value = rate_limit._fixed_window_value(r.value, r.ts, greatest(now, r.ts), rate, period, capacity, phase) - amount,
      ts = greatest(now, r.ts),
      idle_at = rate_limit._fixed_window_idle_at(
        rate_limit._fixed_window_value(r.value, r.ts, greatest(now, r.ts), rate, period, capacity, phase) - amount,
        greatest(now, r.ts), rate, period, capacity, phase)
    WHERE r.ctid = (
        SELECT s.ctid
        FROM rate_limit.rate_limits AS s
        WHERE s.name = bucket_name AND s.key = bucket_key AND s.shard BETWEEN 0 AND 0
        ORDER BY s.shard DESC
        LIMIT 1
      )
      AND r.shards = 1 AND r.detail IS NULL
      AND rate_limit._fixed_window_value(r.value, r.ts, greatest(now, r.ts), rate, period, capacity, phase) >= amount
      AND rate_limit._can_take(rate, period, capacity, amount, count, times)
    RETURNING r.value, rate_limit._clock() - now INTO balance, waited;
    IF waited <= rate_limit._late_after(1) THEN
      RETURN ARRAY[balance, waited];
    END IF;
  END IF;
  RETURN rate_limit._hand_on(
    balance, waited, now, bucket_name, bucket_key, 'fixed_window', rate, period, capacity, phase, amount, count, times);
END
$function$;
