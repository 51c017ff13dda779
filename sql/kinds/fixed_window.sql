-- fixed_window: `rate` tokens at the start of each window of length `period`; what is left rolls over up to `capacity`.
-- The grid of windows is absolute, w(t) = floor((t - phase) / period): it is the same in every process and after the
-- row is gone. Without `start` the phase is derived from the bucket, so that windows of many keys do not end together.
-- Source: the fixed window of Convex's rate limiter, with the grid made absolute.

--@ declare
opened bigint; -- the start of the window that holds `now`

--@ fresh: the state of a bucket without a row, at `now`
bucket.value := capacity;
bucket.ts := NULL;
bucket.earlier_counts := NULL;

--@ advance: from `bucket.ts` to `now`; sets `balance`
DECLARE
  phase bigint := limit_starts[limit_in_hand];
  opened_before bigint;
BEGIN
  IF phase IS NULL THEN
    phase := public.rate_limit_phase(bucket_names[in_hand], bucket_keys[in_hand]);
  END IF;
  --@include balance_of_counts
  -- Twice %, because the remainder of a negative number is negative. A phase may be longer than the period.
  opened := now - ((now - phase % period) % period + period) % period;
  opened_before := bucket.ts - ((bucket.ts - phase % period) % period + period) % period;
  inflow := coalesce(rate * ((opened - opened_before) / period), 0);
  bucket.value := least(bucket.value + inflow, capacity);
  -- A longer period may have opened before `ts`: then `ts` stays, or a shorter one later would grant windows twice.
  bucket.ts := greatest(bucket.ts, opened);
  balance := bucket.value;
END;

--@ take: `count` tokens
bucket.value := bucket.value - count;

--@ credit: `count` tokens come back
bucket.value := least(bucket.value + count, capacity);

--@ idle: when the bucket is full again
bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;

--@ wait: microseconds from `now` until the balance has grown by `missing`
wait := opened - now + greatest(ceil((missing - tolerance) / rate), 1) * period;

--@ validate: sets `reason` if an option does not apply
IF resolution IS NOT NULL THEN
  reason := 'resolution does not apply to a fixed window';
END IF;
