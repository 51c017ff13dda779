-- The kinds of limits. Each kind has a file in kinds/; the functions here select the expression of the kind. docs/design.md
-- ("Add a kind of limit") lists the other places that depend on the kind.
--
-- A row is (value, ts, detail); `ts` is the time of its last change. So after a change of the limit, only windows of the new
-- limit that start after the last change grant tokens. `now` is never before `ts`, so a clock that steps back removes no tokens.
-- A kind ignores the arguments that it does not need. The kind of a calendar window holds its calendar; its functions return
-- NULL for any other kind.

-- Returns where the windows of a limit begin: its `start`, or else a phase that depends only on the bucket. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._grid(kind text, start bigint, period bigint, bucket_name text, bucket_key text)
RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'fixed_window' THEN coalesce(start, rate_limit._phase(bucket_name, bucket_key))
    WHEN 'sliding_window' THEN coalesce(start % period, 0)
  END
$function$;

-- Returns whether the row has this kind and grid of windows, so that the expressions below apply to it.
CREATE OR REPLACE FUNCTION rate_limit._fits(
  kind text, detail double precision[], period bigint, phase bigint, resolution integer
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN kind = 'sliding_window'
    THEN coalesce(
      detail[1] = period AND detail[2] = phase AND pg_catalog.cardinality(detail) = resolution + 3, false)
    WHEN kind = 'gate' THEN coalesce(detail[1] = -2, false)
    ELSE detail IS NULL
  END
$function$;

-- Returns the tokens that are left at `now`; negative while tokens are owed.
CREATE OR REPLACE FUNCTION rate_limit._left(
  kind text, value double precision, ts bigint, detail double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket' THEN rate_limit._token_bucket_value(value, ts, now, rate, period, capacity)
    WHEN 'fixed_window' THEN rate_limit._fixed_window_value(value, ts, now, rate, period, capacity, phase)
    WHEN 'sliding_window'
    THEN rate_limit._sliding_window_left_at(value, ts, detail, now, rate, period, phase, resolution)
    WHEN 'gate' THEN rate_limit._token_bucket_value(value, ts, now, 1, 1, 0)
    ELSE rate_limit._calendar_window_value(kind, value, ts, now, rate, capacity)
  END
$function$;

-- Returns the value of a row after tokens were taken; inlined. The functions _.._after return one column each of a row of this
-- kind and grid, after `amount` tokens were taken from it at `now`, even if it has fewer. They are expressions for a statement
-- on many rows; _take_from does the same for one row.
CREATE OR REPLACE FUNCTION rate_limit._value_after(
  kind text, value double precision, ts bigint, detail double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer, amount double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket' THEN rate_limit._token_bucket_value(value, ts, now, rate, period, capacity) - amount
    WHEN 'fixed_window' THEN rate_limit._fixed_window_value(value, ts, now, rate, period, capacity, phase) - amount
    WHEN 'sliding_window'
    THEN rate_limit._sliding_window_value(value, ts, detail, now, period, phase, resolution) + amount
    ELSE rate_limit._calendar_window_value(kind, value, ts, now, rate, capacity) - amount
  END
$function$;

-- Returns when a row is idle after tokens were taken; inlined.
CREATE OR REPLACE FUNCTION rate_limit._idle_after(
  kind text, value double precision, ts bigint, detail double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer, amount double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket'
    THEN rate_limit._token_bucket_idle_at(
      rate_limit._token_bucket_value(value, ts, now, rate, period, capacity) - amount, now, rate, period, capacity)
    WHEN 'fixed_window'
    THEN rate_limit._fixed_window_idle_at(
      rate_limit._fixed_window_value(value, ts, now, rate, period, capacity, phase) - amount, now, rate, period, capacity, phase)
    WHEN 'sliding_window'
    THEN rate_limit._sliding_window_idle_after(
      value, ts, detail, now, rate, period, phase, resolution, amount)
    ELSE rate_limit._calendar_window_idle_at(
      kind, rate_limit._calendar_window_value(kind, value, ts, now, rate, capacity) - amount, now, rate, period, capacity)
  END
$function$;

-- Returns the earlier counts of a row after tokens were taken; inlined.
CREATE OR REPLACE FUNCTION rate_limit._counts_after(
  kind text, value double precision, ts bigint, detail double precision[], now bigint, rate double precision,
  period bigint, phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'sliding_window'
    THEN rate_limit._sliding_window_earlier(value, ts, detail, now, rate, period, phase, resolution)
  END
$function$;

-- Returns the microseconds from `now` until the balance of a row, brought up to `now`, has grown by `missing`.
CREATE OR REPLACE FUNCTION rate_limit._wait(
  kind text, bucket rate_limit.rate_limits, missing double precision, tolerance double precision, left_now double precision,
  now bigint, rate double precision, period bigint, phase bigint, resolution integer
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF kind IN ('token_bucket', 'gate') THEN
    RETURN rate_limit._token_bucket_wait(missing, tolerance, rate, period);
  ELSIF kind = 'fixed_window' THEN
    RETURN rate_limit._fixed_window_wait(missing, tolerance, now, rate, period, phase);
  ELSIF kind = 'sliding_window' THEN
    RETURN rate_limit._sliding_window_wait(
      missing, tolerance, bucket.value || bucket.detail[4:], left_now, rate, period,
      rate_limit._sliding_window_passed(now, period, phase, resolution));
  END IF;
  RETURN rate_limit._calendar_window_wait(kind, missing, tolerance, now, rate, period);
END
$function$;

-- Returns `bucket` as a row of this kind and grid. A row without `ts` means that the bucket has no row, so it is full.
CREATE OR REPLACE FUNCTION rate_limit._adopt(
  kind text, bucket rate_limit.rate_limits, now bigint, rate double precision, period bigint, capacity double precision,
  phase bigint, resolution integer
) RETURNS rate_limit.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  used double precision;
BEGIN
  IF kind = 'gate' AND bucket.detail[1] = -2 THEN
    RETURN bucket;
  END IF;
  -- Slots of a concurrency limit and blocks are no tokens, and a gate that has none is open.
  IF bucket.ts IS NULL OR bucket.detail[1] < 0 OR kind = 'gate' THEN
    bucket.ts := now;
    bucket.value := CASE WHEN kind = 'sliding_window' THEN rate ELSE capacity END;
    bucket.detail := NULL;
  END IF;
  IF kind = 'sliding_window' THEN
    RETURN rate_limit._sliding_window_adopt(bucket, rate, period, phase, resolution);
  END IF;
  IF bucket.detail IS NOT NULL THEN -- The row is from a sliding window: the tokens it counted are spent.
    SELECT bucket.value + coalesce(sum(c), 0) INTO used FROM unnest(bucket.detail[4:]) AS c;
    bucket.value := capacity - used;
    bucket.detail := NULL;
  END IF;
  RETURN bucket;
END
$function$;

-- Takes `amount` tokens at `now` from a row of this kind and grid, even if it has fewer. Returns the new row and the balance.
-- It is not one expression, so that only the expressions of one kind are set up.
CREATE OR REPLACE FUNCTION rate_limit._take_from(
  kind text, bucket rate_limit.rate_limits, now bigint, rate double precision, period bigint, capacity double precision,
  phase bigint, resolution integer, amount double precision, OUT after rate_limit.rate_limits, OUT remaining double precision
) LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  after := bucket;
  IF kind IN ('token_bucket', 'gate') THEN
    after.value := rate_limit._token_bucket_value(bucket.value, bucket.ts, now, rate, period, capacity) - amount;
    after.ts := now;
    after.idle_at := rate_limit._token_bucket_idle_at(after.value, now, rate, period, capacity);
    remaining := after.value;
  ELSIF kind = 'fixed_window' THEN
    after.value := rate_limit._fixed_window_value(bucket.value, bucket.ts, now, rate, period, capacity, phase) - amount;
    after.ts := now;
    after.idle_at := rate_limit._fixed_window_idle_at(after.value, now, rate, period, capacity, phase);
    remaining := after.value;
  ELSIF kind = 'sliding_window' THEN
    after.value := rate_limit._sliding_window_value(
      bucket.value, bucket.ts, bucket.detail, now, period, phase, resolution) + amount;
    after.detail := rate_limit._sliding_window_earlier(
      bucket.value, bucket.ts, bucket.detail, now, rate, period, phase, resolution);
    after.ts := now;
    after.idle_at := rate_limit._sliding_window_idle_at(
      after.value || after.detail[4:], now, period, phase, resolution);
    remaining := rate_limit._sliding_window_left_at(
      bucket.value, bucket.ts, bucket.detail, now, rate, period, phase, resolution) - amount;
  ELSE
    after.value := rate_limit._calendar_window_value(kind, bucket.value, bucket.ts, now, rate, capacity) - amount;
    after.ts := now;
    after.idle_at := rate_limit._calendar_window_idle_at(kind, after.value, now, rate, period, capacity);
    remaining := after.value;
  END IF;
END
$function$;

-- Returns a row with `count` tokens returned to it. The row has to be up to date.
CREATE OR REPLACE FUNCTION rate_limit._credited(
  kind text, bucket rate_limit.rate_limits, count double precision, capacity double precision
) RETURNS rate_limit.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF kind = 'sliding_window' THEN
    RETURN rate_limit._sliding_window_credit(bucket, count);
  END IF;
  bucket.value := least(bucket.value + count, capacity);
  RETURN bucket;
END
$function$;
