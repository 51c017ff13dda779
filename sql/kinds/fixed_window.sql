-- fixed_window: `rate` tokens at the start of each window of length `period`; what is left rolls over up to `capacity`.
-- The grid of windows is absolute, w(t) = floor((t - phase) / period): it is the same in every process and after the
-- row is gone. Without `start` the phase is derived from the bucket, so that windows of many keys do not end together.
-- Source: the fixed window of Convex's rate limiter, with the grid made absolute.

--@ declare
opened bigint; -- the start of the window at hand

--@ fresh: the state of a bucket without a row, at `now`
stored := capacity;
since := now;
earlier := NULL;

--@ idle: when the bucket is full again; sets `opened` for `since`
IF start IS NULL THEN
  start := ('x' || substr(encode(sha256(convert_to(
    bucket_names[in_hand] || ':' || bucket_keys[in_hand], 'UTF8')), 'hex'), 1, 14))::bit(56)::bigint % period;
END IF;
-- Twice %, because the remainder of a negative number is negative.
opened := since - ((since - start) % period + period) % period;
idle := opened + least(greatest(ceil((capacity - stored - tolerance) / rate), 0) * period, 1e18)::bigint;

--@ advance: from `since` to `now`; sets `balance`
DECLARE
  opened_before CONSTANT bigint := opened;
BEGIN
  IF earlier IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
    FOREACH part IN ARRAY earlier LOOP
      stored := stored + part;
    END LOOP;
    stored := capacity - stored;
    earlier := NULL;
  END IF;
  opened := now - ((now - start) % period + period) % period;
  stored := least(stored + rate * ((opened - opened_before) / period), capacity);
  -- A longer period may open before `since`: then `since` stays, or a shorter one later would grant windows twice.
  since := greatest(since, opened);
  balance := stored;
END;

--@ take: `count` tokens
stored := stored - count;

--@ credit: `count` tokens come back
stored := least(stored + count, capacity);

--@ wait: microseconds from `now` until the balance has grown by `missing`
wait := opened - now + greatest(ceil((missing - tolerance) / rate), 1) * period;

--@ validate: sets `reason` if an option does not apply
IF resolution IS NOT NULL THEN
  reason := 'resolution does not apply to a fixed window';
END IF;
