-- token_bucket: `rate` tokens per `period` flow in all the time, up to `capacity`.
-- Source: J. Turner, "New directions in communications (or which way to the information age?)", IEEE
-- Communications Magazine 24(10), 1986, in the form of two numbers (value, ts) brought up to date when read, as in
-- F. Pachot, "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)", 2022, and Convex's rate limiter.
--
-- Tokens are taken as of a time after any wait for the row. Under READ COMMITTED an UPDATE that waited for a transaction that
-- changed the row evaluates its conditions and values again, but with the same `now`. rate_limit_take has a condition that is then false, so that the
-- row stays as it is, locked, for another UPDATE. `taken_by_row` reads the clock for the row, in a sub-select that depends on
-- it; its condition keeps the earlier `now`: if the balance is enough then, it is enough later.

--@ fresh: the state of a bucket without a row, at `now`
bucket.value := capacity;
bucket.ts := now;
bucket.earlier_counts := NULL;

--@ advance: from `bucket.ts` to `now`; sets `balance`
--@include balance_of_counts
inflow := greatest(now - bucket.ts, 0)::double precision * rate / period;
bucket.value := least(bucket.value + inflow, capacity);
bucket.ts := now;
balance := bucket.value;

--@ take: `count` tokens
bucket.value := bucket.value - count;

--@ credit: `count` tokens come back
bucket.value := least(bucket.value + count, capacity);

--@ wait: microseconds from `now` until the balance has grown by `missing`
wait := ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate));

--@ idle: when the bucket is full again
bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;

--@ flow: the balance at `now`, if the capacity did not end it
public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period)

--@ enough: for `amount`, which is not above the capacity; `needed` is that less the tolerance
AND public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period) >= needed

--@ taken: the row once `amount` is taken at `now`
value = least(
  --@include token_bucket.flow
  , capacity) - amount,
ts = greatest(now, bucket.ts),
idle_at = public.rate_limit_full_at(
  least(
    --@include token_bucket.flow
    , capacity) - amount,
  greatest(now, bucket.ts), rate, period, capacity)

--@ taken_by_row: the row once `amount` is taken at the time at which the UPDATE comes to it
(value, ts, idle_at) = (
  SELECT t.* FROM public.rate_limit_taken(bucket.value, bucket.ts, now, amount, rate, period, capacity) AS t)

--@ kept_waiting: the row as if `amount` had been taken at `now`, and not before
value = least(
  --@include token_bucket.flow
  , capacity - amount),
ts = greatest(now, bucket.ts),
idle_at = public.rate_limit_full_at(
  least(
    --@include token_bucket.flow
    , capacity - amount),
  greatest(now, bucket.ts), rate, period, capacity)

--@ validate: sets `reason` if an option does not apply
IF start IS NOT NULL OR resolution IS NOT NULL THEN
  reason := 'start and resolution do not apply to a token bucket';
END IF;
