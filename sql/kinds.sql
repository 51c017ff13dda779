-- The kinds of limits. Each kind has a file in kinds/; the functions here select the expression of the kind. CONTRIBUTING.md
-- ("Add a kind of limit") lists the other places that depend on the kind.
--
-- A row is (value, ts, earlier_counts). `now` is never before `ts`, so a clock that steps back removes no tokens. A kind
-- ignores the arguments that it does not need. The kind of a calendar window holds its calendar; its functions return NULL for
-- any other kind.

-- Returns the phase of the windows: `start` if the limit has one, or else a phase that depends only on the kind and the bucket.
CREATE OR REPLACE FUNCTION public.rate_limit_grid(kind text, start bigint, period bigint, bucket_name text, bucket_key text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'fixed_window' THEN coalesce(start, public.rate_limit_phase(bucket_name, bucket_key))
    WHEN 'sliding_window' THEN coalesce(start % period, 0)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_grid IS 'Returns where the windows of a limit begin; inlined.';

-- Returns whether the row has this kind and grid of windows, so that the expressions below apply to it.
CREATE OR REPLACE FUNCTION public.rate_limit_fits(
  kind text, earlier_counts double precision[], period bigint, phase bigint, resolution integer
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN kind = 'sliding_window'
    THEN coalesce(
      earlier_counts[1] = period AND earlier_counts[2] = phase AND pg_catalog.cardinality(earlier_counts) = resolution + 3, false)
    ELSE earlier_counts IS NULL
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_fits IS 'Returns whether a row has this kind and grid of windows; inlined.';

-- Returns the tokens that are left at `now`; negative while tokens are owed.
CREATE OR REPLACE FUNCTION public.rate_limit_left(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket' THEN public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity)
    WHEN 'fixed_window' THEN public.rate_limit_fixed_window_value(value, ts, now, rate, period, capacity, phase)
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_left_at(value, ts, earlier_counts, now, rate, period, phase, resolution)
    ELSE public.rate_limit_calendar_window_value(kind, value, ts, now, rate, capacity)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_left IS 'Returns the tokens that are left in a bucket at a time; inlined.';

-- The functions rate_limit_.._after return one column each of a row of this kind and grid, after `amount` tokens were taken
-- from it at `now`, even if it has fewer. They are expressions for a statement on many rows; rate_limit_take_from does the same
-- for one row.
CREATE OR REPLACE FUNCTION public.rate_limit_value_after(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer, amount double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket' THEN public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount
    WHEN 'fixed_window' THEN public.rate_limit_fixed_window_value(value, ts, now, rate, period, capacity, phase) - amount
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_value(value, ts, earlier_counts, now, period, phase, resolution) + amount
    ELSE public.rate_limit_calendar_window_value(kind, value, ts, now, rate, capacity) - amount
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_value_after IS 'Returns the value of a row after tokens were taken; inlined.';

-- A fixed or calendar window may have started before `ts` if its period was made longer. Then `ts` stays, or a shorter period
-- later would grant windows twice.
CREATE OR REPLACE FUNCTION public.rate_limit_ts_after(kind text, ts bigint, now bigint, period bigint, phase bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN kind = 'fixed_window' THEN greatest(ts, public.rate_limit_window_start(now, phase, period))
    WHEN kind IN ('token_bucket', 'sliding_window') THEN now
    ELSE greatest(ts, public.rate_limit_calendar_start(kind, public.rate_limit_calendar_nth(kind, now)))
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_ts_after IS 'Returns the time of a row after tokens were taken; inlined.';

CREATE OR REPLACE FUNCTION public.rate_limit_idle_after(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer, amount double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket'
    THEN public.rate_limit_token_bucket_idle_at(
      public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount, now, rate, period, capacity)
    WHEN 'fixed_window'
    THEN public.rate_limit_fixed_window_idle_at(
      public.rate_limit_fixed_window_value(value, ts, now, rate, period, capacity, phase) - amount, now, rate, period, capacity, phase)
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_idle_after(
      value, ts, earlier_counts, now, rate, period, phase, resolution, amount)
    ELSE public.rate_limit_calendar_window_idle_at(
      kind, public.rate_limit_calendar_window_value(kind, value, ts, now, rate, capacity) - amount, now, rate, period, capacity)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_idle_after IS 'Returns when a row is idle after tokens were taken; inlined.';

CREATE OR REPLACE FUNCTION public.rate_limit_counts_after(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_earlier(value, ts, earlier_counts, now, rate, period, phase, resolution)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_counts_after IS 'Returns the earlier counts of a row after tokens were taken; inlined.';

-- Returns the microseconds from `now` until the balance of a row, brought up to `now`, has grown by `missing`.
CREATE OR REPLACE FUNCTION public.rate_limit_wait(
  kind text, bucket public.rate_limits, missing double precision, tolerance double precision, left_now double precision,
  now bigint, rate double precision, period bigint, phase bigint, resolution integer
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF kind = 'token_bucket' THEN
    RETURN public.rate_limit_token_bucket_wait(missing, tolerance, rate, period);
  ELSIF kind = 'fixed_window' THEN
    RETURN public.rate_limit_fixed_window_wait(missing, tolerance, now, rate, period, phase);
  ELSIF kind = 'sliding_window' THEN
    RETURN public.rate_limit_sliding_window_wait(
      missing, tolerance, bucket.value || bucket.earlier_counts[4:], left_now, rate, period,
      public.rate_limit_sliding_window_passed(now, period, phase, resolution));
  END IF;
  RETURN public.rate_limit_calendar_window_wait(kind, missing, tolerance, now, rate, period);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_wait IS 'Returns the time until so many more tokens have arrived.';

-- Returns the microseconds from `now` until the window ends or, for a kind without windows that end, until a row, brought up
-- to `now`, is full.
CREATE OR REPLACE FUNCTION public.rate_limit_peek_wait(
  kind text, bucket public.rate_limits, now bigint, period bigint, phase bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'fixed_window' THEN public.rate_limit_window_start(now, phase, period) + period - now
    ELSE greatest(bucket.idle_at - now, 0)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_peek_wait IS 'Returns the time until the window ends or the bucket is full.';

-- Returns `bucket` as a row of this kind and grid. A row without `ts` means that the bucket has no row, so it is full.
CREATE OR REPLACE FUNCTION public.rate_limit_adopt(
  kind text, bucket public.rate_limits, now bigint, rate double precision, period bigint, capacity double precision,
  phase bigint, resolution integer
) RETURNS public.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  used double precision;
BEGIN
  IF bucket.ts IS NULL OR bucket.earlier_counts[1] < 0 THEN -- Slots of a concurrency limit are no tokens.
    bucket.ts := public.rate_limit_ts_after(kind, NULL, now, period, phase);
    bucket.value := CASE WHEN kind = 'sliding_window' THEN rate ELSE capacity END;
    bucket.earlier_counts := NULL;
  END IF;
  IF kind = 'sliding_window' THEN
    RETURN public.rate_limit_sliding_window_adopt(bucket, rate, period, phase, resolution);
  END IF;
  IF bucket.earlier_counts IS NOT NULL THEN -- The row is from a sliding window: the tokens it counted are spent.
    SELECT bucket.value + coalesce(sum(c), 0) INTO used FROM unnest(bucket.earlier_counts[4:]) AS c;
    bucket.value := capacity - used;
    bucket.earlier_counts := NULL;
  END IF;
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_adopt IS 'Returns a row, or no row, as a row of this kind and grid.';

-- Takes `amount` tokens at `now` from a row of this kind and grid, even if it has fewer. Returns the new row and the balance.
-- It is not one expression, so that only the expressions of one kind are set up.
CREATE OR REPLACE FUNCTION public.rate_limit_take_from(
  kind text, bucket public.rate_limits, now bigint, rate double precision, period bigint, capacity double precision,
  phase bigint, resolution integer, amount double precision, OUT after public.rate_limits, OUT remaining double precision
) LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  after := bucket;
  IF kind = 'token_bucket' THEN
    after.value := public.rate_limit_token_bucket_value(bucket.value, bucket.ts, now, rate, period, capacity) - amount;
    after.ts := now;
    after.idle_at := public.rate_limit_token_bucket_idle_at(after.value, now, rate, period, capacity);
    remaining := after.value;
  ELSIF kind = 'fixed_window' THEN
    after.value := public.rate_limit_fixed_window_value(bucket.value, bucket.ts, now, rate, period, capacity, phase) - amount;
    -- The window may have started before `ts` if the period was made longer: see rate_limit_ts_after.
    after.ts := greatest(bucket.ts, public.rate_limit_window_start(now, phase, period));
    after.idle_at := public.rate_limit_fixed_window_idle_at(after.value, now, rate, period, capacity, phase);
    remaining := after.value;
  ELSIF kind = 'sliding_window' THEN
    after.value := public.rate_limit_sliding_window_value(
      bucket.value, bucket.ts, bucket.earlier_counts, now, period, phase, resolution) + amount;
    after.earlier_counts := public.rate_limit_sliding_window_earlier(
      bucket.value, bucket.ts, bucket.earlier_counts, now, rate, period, phase, resolution);
    after.ts := now;
    after.idle_at := public.rate_limit_sliding_window_idle_at(
      after.value || after.earlier_counts[4:], now, period, phase, resolution);
    remaining := public.rate_limit_sliding_window_left_at(
      bucket.value, bucket.ts, bucket.earlier_counts, now, rate, period, phase, resolution) - amount;
  ELSE
    after.value := public.rate_limit_calendar_window_value(kind, bucket.value, bucket.ts, now, rate, capacity) - amount;
    after.ts := public.rate_limit_ts_after(kind, bucket.ts, now, period, NULL);
    after.idle_at := public.rate_limit_calendar_window_idle_at(kind, after.value, now, rate, period, capacity);
    remaining := after.value;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_from IS 'Takes tokens from a row in memory.';

-- Returns a row with `count` tokens returned to it. The row has to be up to date.
CREATE OR REPLACE FUNCTION public.rate_limit_credited(
  kind text, bucket public.rate_limits, count double precision, capacity double precision
) RETURNS public.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF kind = 'sliding_window' THEN
    RETURN public.rate_limit_sliding_window_credit(bucket, count);
  END IF;
  bucket.value := least(bucket.value + count, capacity);
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_credited IS 'Returns a row with tokens returned to it.';
