-- sliding_window: at most `rate` in any `period`, counted in `resolution` sub-intervals. The current one and those before it
-- count in full; the oldest is weighted by how much of it is still in the window:
--   used = c[0] + .. + c[n-1] + c[n] * (1 - fraction of the current sub-interval that has passed)
-- `value` is c[0]; `earlier_counts` holds the limit's period, phase and rate, then c[1] to c[n]. `ts` is the time of the last
-- write. With n = 1 this is the two-counter form.
-- Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017 (two counters);
-- sub-intervals as in ClassDojo's sliding counters.
--
-- The common case n = 1 is an expression that the planner inlines; larger n are computed by a function.

-- Returns the fraction of the current sub-interval that has passed at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_passed(now bigint, period bigint, phase bigint, resolution integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ((now - public.rate_limit_window_start(now, phase, period)) * resolution % period)::double precision / period
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_passed IS
  'Returns the fraction of the current sub-interval of a sliding window that has passed; inlined.';

-- Returns c[0] to c[n] at `now` for a row with this grid.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_counts(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_before CONSTANT bigint := public.rate_limit_window_start(ts, phase, period);
  start_now CONSTANT bigint := public.rate_limit_window_start(now, phase, period);
  -- The sub-intervals that have begun since `ts`. Two periods have the same effect as more, and cannot overflow.
  steps CONSTANT bigint := least(
    least((start_now - start_before) / period, 2) * resolution
      + (now - start_now) * resolution / period - (ts - start_before) * resolution / period,
    resolution + 1);
BEGIN
  IF steps <= 0 THEN
    RETURN value || earlier_counts[4:];
  END IF;
  RETURN array_fill(0::double precision, ARRAY[steps::integer]) || (value || earlier_counts[4:])[: resolution + 1 - steps];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_counts IS 'Returns the counts of a sliding window at a time.';

-- Returns what these counts leave of `rate`. The last count is that of the oldest sub-interval.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_left(
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
COMMENT ON FUNCTION public.rate_limit_sliding_window_left IS 'Returns what is left of a sliding window with these counts.';

-- The two counters of n = 1, in the window that began at `started`: c[0], c[1], and what they leave.
CREATE OR REPLACE FUNCTION public.rate_limit_two_counters_now(value double precision, ts bigint, started bigint)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE WHEN ts >= started THEN value ELSE 0 END
$function$;
COMMENT ON FUNCTION public.rate_limit_two_counters_now IS 'Returns the count of the current window; inlined.';

CREATE OR REPLACE FUNCTION public.rate_limit_two_counters_before(
  value double precision, ts bigint, earlier_counts double precision[], started bigint, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE WHEN ts >= started THEN earlier_counts[4] WHEN ts >= started - period THEN value ELSE 0 END
$function$;
COMMENT ON FUNCTION public.rate_limit_two_counters_before IS 'Returns the count of the window before the current one; inlined.';

-- Returns c[0] at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_value(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN (public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution))[1]
    ELSE public.rate_limit_two_counters_now(value, ts, public.rate_limit_window_start(now, phase, period))
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_value IS 'Returns the newest count of a sliding window at a time; inlined.';

-- Returns `earlier_counts` at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_earlier(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ARRAY[period, phase, rate]::double precision[] || CASE
    WHEN resolution > 1
    THEN (public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution))[2:]
    ELSE ARRAY[
      public.rate_limit_two_counters_before(
        value, ts, earlier_counts, public.rate_limit_window_start(now, phase, period), period)]
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_earlier IS
  'Returns the earlier counts of a sliding window at a time; inlined.';

-- Returns what is left at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_left_at(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN public.rate_limit_sliding_window_left(
      public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution),
      rate,
      public.rate_limit_sliding_window_passed(now, period, phase, resolution))
    WHEN ts >= public.rate_limit_window_start(now, phase, period)
    THEN rate - value - earlier_counts[4] * (1 - public.rate_limit_sliding_window_passed(now, period, phase, 1))
    WHEN ts >= public.rate_limit_window_start(now, phase, period) - period
    THEN rate - value * (1 - public.rate_limit_sliding_window_passed(now, period, phase, 1))
    ELSE rate
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_left_at IS 'Returns what is left of a sliding window at a time; inlined.';

-- Returns the time at which the last of these counts (c[0] to c[n] at `now`) leaves the window.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_idle_at(
  counts double precision[], now bigint, period bigint, phase bigint, resolution integer
) RETURNS bigint LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  start_now CONSTANT bigint := public.rate_limit_window_start(now, phase, period);
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
COMMENT ON FUNCTION public.rate_limit_sliding_window_idle_at IS 'Returns when the counts of a sliding window have left it.';

-- Returns the same after `amount` was taken from a row at `now`. The case n = 1 needs no counts.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_idle_after(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer, amount double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution = 1 AND amount > 0 THEN public.rate_limit_window_start(now, phase, period) + 2 * period
    ELSE public.rate_limit_sliding_window_idle_at(
      (public.rate_limit_sliding_window_value(value, ts, earlier_counts, now, period, phase, resolution) + amount)
        || (public.rate_limit_sliding_window_earlier(value, ts, earlier_counts, now, rate, period, phase, resolution))[4:],
      now, period, phase, resolution)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_idle_after IS
  'Returns when the counts of a sliding window have left it after tokens were taken; inlined.';

-- Returns the microseconds from `now` until `missing` more tokens are left, if no other call takes any.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_wait(
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
COMMENT ON FUNCTION public.rate_limit_sliding_window_wait IS
  'Returns the time until so many more tokens are left in a sliding window.';

-- Returns `bucket` with its counts moved to this grid, if it has another one. All counts move to the newest sub-interval, so
-- that none leaves too early. In a row of another kind, the missing tokens count as used.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_adopt(
  bucket public.rate_limits, rate double precision, period bigint, phase bigint, resolution integer
) RETURNS public.rate_limits LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  earlier double precision;
BEGIN
  IF bucket.earlier_counts IS NULL THEN
    bucket.value := greatest(rate - bucket.value, 0);
  ELSIF cardinality(bucket.earlier_counts) = resolution + 3 AND bucket.earlier_counts[1] = period
    AND bucket.earlier_counts[2] = phase
  THEN
    bucket.earlier_counts[3] := rate;
    RETURN bucket;
  ELSE
    FOREACH earlier IN ARRAY bucket.earlier_counts[4:] LOOP
      bucket.value := bucket.value + earlier;
    END LOOP;
  END IF;
  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || array_fill(0::double precision, ARRAY[resolution]);
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_adopt IS 'Returns a row moved to the grid of a sliding window.';

-- Returns `bucket` with `count` tokens returned: subtracted from the newest counts first, and not below 0.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_credit(bucket public.rate_limits, count double precision) RETURNS public.rate_limits
LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  rest double precision := count - least(count, bucket.value);
  part double precision;
BEGIN
  bucket.value := bucket.value - least(count, bucket.value);
  FOR nth IN 4 .. cardinality(bucket.earlier_counts) LOOP
    EXIT WHEN rest <= 0;
    part := least(rest, bucket.earlier_counts[nth]);
    bucket.earlier_counts[nth] := bucket.earlier_counts[nth] - part;
    rest := rest - part;
  END LOOP;
  RETURN bucket;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_credit IS 'Returns a row of a sliding window with tokens returned to it.';
