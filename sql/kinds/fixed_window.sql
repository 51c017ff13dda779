-- fixed_window: `rate` tokens at the start of each window of length `period`; what is left rolls over up to `capacity`.
-- The grid of windows is absolute, w(t) = floor((t - phase) / period): it is the same in every process and after the
-- row is gone. Without `start` the phase is derived from the bucket, so that windows of many keys do not end together.
-- Source: the fixed window of Convex's rate limiter, with the grid made absolute.

--@ declare
opened bigint; -- the start of the window at hand

--@ fresh: the state of a bucket without a row, at `now`
bucket.value := capacity;
bucket.ts := now;
bucket.earlier_counts := NULL;

--@ idle: when the bucket is full again; sets `opened` for `bucket.ts`
IF start IS NULL THEN
  start := ('x' || substr(encode(sha256(convert_to(
    bucket_names[in_hand] || ':' || bucket_keys[in_hand], 'UTF8')), 'hex'), 1, 14))::bit(56)::bigint % period;
END IF;
-- Twice %, because the remainder of a negative number is negative.
opened := bucket.ts - ((bucket.ts - start) % period + period) % period;
bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value - tolerance) / rate), 0) * period, 1e18)::bigint;

--@ advance: from `bucket.ts` to `now`; sets `balance`
DECLARE
  opened_before CONSTANT bigint := opened;
BEGIN
  IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
    FOREACH part IN ARRAY bucket.earlier_counts LOOP
      bucket.value := bucket.value + part;
    END LOOP;
    bucket.value := capacity - bucket.value;
    bucket.earlier_counts := NULL;
  END IF;
  opened := now - ((now - start) % period + period) % period;
  bucket.value := least(bucket.value + rate * ((opened - opened_before) / period), capacity);
  -- A longer period may open before `bucket.ts`: then `bucket.ts` stays, or a shorter one later would grant windows twice.
  bucket.ts := greatest(bucket.ts, opened);
  balance := bucket.value;
END;

--@ take: `count` tokens
bucket.value := bucket.value - count;

--@ credit: `count` tokens come back
bucket.value := least(bucket.value + count, capacity);

--@ wait: microseconds from `now` until the balance has grown by `missing`
wait := opened - now + greatest(ceil((missing - tolerance) / rate), 1) * period;

--@ validate: sets `reason` if an option does not apply
IF resolution IS NOT NULL THEN
  reason := 'resolution does not apply to a fixed window';
END IF;
