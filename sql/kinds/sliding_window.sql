-- sliding_window: at most `rate` in any `period`, counted in `resolution` sub-intervals. The current one and those before it
-- count in full; the oldest is weighted by how much of it is still in the window:
--   used = c[0] + .. + c[n-1] + c[n] * (1 - fraction of the current sub-interval that has passed)
-- `value` is c[0]; `detail` holds the limit's period, phase and rate, then c[1] to c[n]. `ts` is the time of the last
-- write. With n = 1 this is the two-counter form.
-- Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017 (two counters);
-- sub-intervals as in ClassDojo's sliding counters.
--
-- The common case n = 1 is an expression that the planner inlines; larger n are computed by a function.

-- Returns the fraction of the current sub-interval that has passed at `now`.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_passed(now bigint, period bigint, phase bigint, resolution integer)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ((now - rate_limit._window_start(now, phase, period)) * resolution % period)::double precision / period
$function$;

-- Returns c[0] to c[n] at `now` for a row with this grid.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_counts(
  value double precision, ts bigint, detail double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_before CONSTANT bigint := rate_limit._window_start(ts, phase, period);
  start_now CONSTANT bigint := rate_limit._window_start(now, phase, period);
  -- The sub-intervals that have begun since `ts`. Two periods have the same effect as more, and cannot overflow.
  steps CONSTANT bigint := least(
    least((start_now - start_before) / period, 2) * resolution
      + (now - start_now) * resolution / period - (ts - start_before) * resolution / period,
    resolution + 1);
BEGIN
  IF steps <= 0 THEN
    RETURN value || detail[4:];
  END IF;
  RETURN array_fill(0::double precision, ARRAY[steps::integer]) || (value || detail[4:])[: resolution + 1 - steps];
END
$function$;

-- Returns what these counts leave of `rate`. The last count is that of the oldest sub-interval.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_left(
  counts double precision[], rate double precision, passed double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  used double precision := counts[cardinality(counts)] * (1 - passed);
BEGIN
  FOR nth IN 1 .. cardinality(counts) - 1 LOOP
    used := used + counts[nth];
  END LOOP;
  RETURN rate - used;
END
$function$;

-- The two counters of n = 1, in the window that began at `started`: c[0], c[1], and what they leave.
CREATE OR REPLACE FUNCTION rate_limit._two_counters_now(value double precision, ts bigint, started bigint)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE WHEN ts >= started THEN value ELSE 0 END
$function$;

-- Returns the count of the window before the current one; inlined.
CREATE OR REPLACE FUNCTION rate_limit._two_counters_before(
  value double precision, ts bigint, detail double precision[], started bigint, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE WHEN ts >= started THEN detail[4] WHEN ts >= started - period THEN value ELSE 0 END
$function$;

-- Returns c[0] at `now`.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_value(
  value double precision, ts bigint, detail double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN (rate_limit._sliding_window_counts(value, ts, detail, now, period, phase, resolution))[1]
    ELSE rate_limit._two_counters_now(value, ts, rate_limit._window_start(now, phase, period))
  END
$function$;

-- Returns `detail` at `now`.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_earlier(
  value double precision, ts bigint, detail double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ARRAY[period, phase, rate]::double precision[] || CASE
    WHEN resolution > 1
    THEN (rate_limit._sliding_window_counts(value, ts, detail, now, period, phase, resolution))[2:]
    ELSE ARRAY[
      rate_limit._two_counters_before(
        value, ts, detail, rate_limit._window_start(now, phase, period), period)]
  END
$function$;

-- Returns what is left at `now`.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_left_at(
  value double precision, ts bigint, detail double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN rate_limit._sliding_window_left(
      rate_limit._sliding_window_counts(value, ts, detail, now, period, phase, resolution),
      rate,
      rate_limit._sliding_window_passed(now, period, phase, resolution))
    WHEN ts >= rate_limit._window_start(now, phase, period)
    THEN rate - value - detail[4] * (1 - rate_limit._sliding_window_passed(now, period, phase, 1))
    WHEN ts >= rate_limit._window_start(now, phase, period) - period
    THEN rate - value * (1 - rate_limit._sliding_window_passed(now, period, phase, 1))
    ELSE rate
  END
$function$;

-- Returns the time at which the last of these counts (c[0] to c[n] at `now`) leaves the window.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_idle_at(
  counts double precision[], now bigint, period bigint, phase bigint, resolution integer
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_now CONSTANT bigint := rate_limit._window_start(now, phase, period);
  steps bigint; -- sub-intervals from the start of the period until the newest count leaves
BEGIN
  FOR nth IN 1 .. resolution + 1 LOOP
    IF counts[nth] <> 0 THEN
      steps := (now - start_now) * resolution / period + resolution + 2 - nth;
      -- Whole periods are added separately, or the product could overflow. Parts are rounded up.
      RETURN start_now + steps / resolution * period + (steps % resolution * period + resolution - 1) / resolution;
    END IF;
  END LOOP;
  RETURN now;
END
$function$;

-- Returns the same after `amount` was taken from a row at `now`. The case n = 1 needs no counts.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_idle_after(
  value double precision, ts bigint, detail double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer, amount double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution = 1 AND amount > 0 THEN rate_limit._window_start(now, phase, period) + 2 * period
    ELSE rate_limit._sliding_window_idle_at(
      (rate_limit._sliding_window_value(value, ts, detail, now, period, phase, resolution) + amount)
        || (rate_limit._sliding_window_earlier(value, ts, detail, now, rate, period, phase, resolution))[4:],
      now, period, phase, resolution)
  END
$function$;

-- Returns the microseconds from `now` until `missing` more tokens are left, if no other call takes any.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_wait(
  missing double precision, tolerance double precision, counts double precision[], left_now double precision,
  rate double precision, period bigint, passed double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  resolution CONSTANT integer := cardinality(counts) - 1;
  may_be_used CONSTANT double precision := rate - left_now - missing;
  whole double precision := 0; -- the sum of the counts that are fully in the window
  leaving double precision;
BEGIN
  FOR nth IN 1 .. resolution LOOP
    whole := whole + counts[nth];
  END LOOP;
  -- In the sub-interval `steps` ahead, c[n - steps] is the one that leaves.
  FOR steps IN 0 .. resolution LOOP
    leaving := counts[resolution - steps + 1];
    IF steps = resolution THEN
      whole := 0;
    END IF;
    IF whole <= may_be_used + tolerance THEN
      IF leaving > 0 THEN
        RETURN ceil(
          (steps + greatest(least(1 - (may_be_used - whole) / leaving, 1), 0) - passed) * period / resolution
            - least(0.001, tolerance / 2 * period / resolution / leaving));
      END IF;
      RETURN ceil((steps - passed) * period / resolution - 0.001);
    END IF;
    whole := whole - counts[resolution - steps];
  END LOOP;
  RETURN NULL;
END
$function$;

-- Returns the `detail` of a row of this grid without earlier counts; inlined.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_grid(
  rate double precision, period bigint, phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ARRAY[period, phase, rate]::double precision[]
    || pg_catalog.array_fill(0::double precision, ARRAY[resolution])
$function$;

-- Returns `bucket` with its counts moved to this grid, if it has another one. All counts move to the newest sub-interval, so
-- that none leaves too early. In a row of another kind, the missing tokens count as used.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_adopt(
  bucket rate_limit.rate_limits, rate double precision, period bigint, phase bigint, resolution integer
) RETURNS rate_limit.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  earlier double precision;
BEGIN
  IF bucket.detail IS NULL THEN
    bucket.value := greatest(rate - bucket.value, 0);
  ELSIF cardinality(bucket.detail) = resolution + 3 AND bucket.detail[1] = period
    AND bucket.detail[2] = phase
  THEN
    bucket.detail[3] := rate;
    RETURN bucket;
  ELSE
    FOREACH earlier IN ARRAY bucket.detail[4:] LOOP
      bucket.value := bucket.value + earlier;
    END LOOP;
  END IF;
  bucket.detail := rate_limit._sliding_window_grid(rate, period, phase, resolution);
  RETURN bucket;
END
$function$;

-- Returns `bucket` with `count` tokens returned: subtracted from the newest counts first, and not below 0.
CREATE OR REPLACE FUNCTION rate_limit._sliding_window_credit(bucket rate_limit.rate_limits, count double precision)
RETURNS rate_limit.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  rest double precision := count - least(count, bucket.value);
  part double precision;
BEGIN
  bucket.value := bucket.value - least(count, bucket.value);
  FOR nth IN 4 .. cardinality(bucket.detail) LOOP
    EXIT WHEN rest <= 0;
    part := least(rest, bucket.detail[nth]);
    bucket.detail[nth] := bucket.detail[nth] - part;
    rest := rest - part;
  END LOOP;
  RETURN bucket;
END
$function$;

-- Takes tokens from one row of a window of two counters, as _update_token_bucket does from a bucket.
CREATE OR REPLACE FUNCTION rate_limit._update_sliding_window(
  bucket_name text, bucket_key text, part integer, shards integer, now bigint, rate double precision, period bigint, phase bigint,
  amount double precision
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  started CONSTANT bigint := rate_limit._window_start(now, phase, period);
  weight CONSTANT double precision := 1 - (now - started)::double precision / period; -- of the count of the window before
  balance double precision;
BEGIN
  UPDATE rate_limit.rate_limits AS r
  SET
    value = rate_limit._two_counters_now(r.value, r.ts, started) + amount,
    ts = greatest(now, r.ts),
    idle_at = started + 2 * period,
    detail = ARRAY[
      period, phase, rate, rate_limit._two_counters_before(r.value, r.ts, r.detail, started, period)]
  WHERE r.ctid = (
      SELECT s.ctid
      FROM rate_limit.rate_limits AS s
      WHERE s.name = bucket_name AND s.key = bucket_key AND s.shard BETWEEN part AND part
      ORDER BY s.shard DESC
      LIMIT 1
    )
    AND r.shards = shards AND rate_limit._clock() <= now + 1000
    -- A row that was written in a later window, because of a clock that differs, is not decided here.
    AND r.ts < started + period
    AND rate_limit._fits('sliding_window', r.detail, period, phase, 1)
    AND rate_limit._two_counters_now(r.value, r.ts, started) + amount
      + rate_limit._two_counters_before(r.value, r.ts, r.detail, started, period) * weight <= rate
  RETURNING rate - r.value - r.detail[4] * weight INTO balance;
  RETURN balance;
END
$function$;

-- Takes tokens from a window of two counters without shards, as _take_token_bucket does from a bucket. `phase` is the start
-- of a window, less than the period. A row that was written in a later window, because of a clock that differs, is handed on.
CREATE OR REPLACE FUNCTION rate_limit._take_sliding_window(
  bucket_name text, bucket_key text, rate double precision, period bigint, phase bigint, amount double precision,
  count double precision, times integer
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_tidscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := rate_limit._clock();
  started CONSTANT bigint := rate_limit._window_start(now, phase, nullif(period, 0));
  -- The weight of the count of the window before.
  weight CONSTANT double precision := 1 - (now - started)::double precision / nullif(period, 0);
  balance double precision;
  waited bigint;
BEGIN
  IF NOT rate_limit._is_distributed() THEN
    UPDATE rate_limit.rate_limits AS r
    SET
      value = rate_limit._two_counters_now(r.value, r.ts, started) + amount,
      ts = greatest(now, r.ts),
      idle_at = started + 2 * period,
      detail = ARRAY[
        period, phase, rate, rate_limit._two_counters_before(r.value, r.ts, r.detail, started, period)]
    WHERE r.ctid = (
        SELECT s.ctid
        FROM rate_limit.rate_limits AS s
        WHERE s.name = bucket_name AND s.key = bucket_key AND s.shard BETWEEN 0 AND 0
        ORDER BY s.shard DESC
        LIMIT 1
      )
      AND r.shards = 1 AND r.ts < started + period
      AND rate_limit._fits('sliding_window', r.detail, period, phase, 1)
      AND rate_limit._two_counters_now(r.value, r.ts, started) + amount
        + rate_limit._two_counters_before(r.value, r.ts, r.detail, started, period) * weight <= rate
      AND rate_limit._can_take(rate, period, rate, amount, count, times)
    RETURNING rate - r.value - r.detail[4] * weight, rate_limit._clock() - now INTO balance, waited;
    IF waited <= rate_limit._late_after(1) THEN
      RETURN ARRAY[balance, waited];
    END IF;
  END IF;
  RETURN rate_limit._hand_on(
    balance, waited, now, bucket_name, bucket_key, 'sliding_window', rate, period, rate, phase, amount, count, times);
END
$function$;
