-- token_bucket: `rate` tokens per `period` flow in all the time, up to `capacity`.
-- Source: J. Turner, "New directions in communications (or which way to the information age?)", IEEE
-- Communications Magazine 24(10), 1986, in the form of two numbers (value, ts) brought up to date when read, as in
-- F. Pachot, "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)", 2022, and Convex's rate limiter.

--@ fresh: the state of a bucket without a row, at `now`
bucket.value := capacity;
bucket.ts := now;
bucket.earlier_counts := NULL;

--@ advance: from `bucket.ts` to `now`; sets `balance`
--@include balance_of_counts
inflow :=
  --@include token_bucket.inflow
;
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

--@ inflow: since `bucket.ts`; a clock that is behind the row takes nothing away
greatest(now - bucket.ts, 0)::double precision * rate / period

--@ flow: the balance at `now`, if the capacity did not end it
bucket.value +
--@include token_bucket.inflow

--@ enough: for `amount`, which is not above the capacity; `needed` is that less the tolerance
AND
--@include token_bucket.flow
>= needed

--@ taken: the row once `amount` is taken at `now`
value = least(
  --@include token_bucket.flow
  , capacity) - amount,
ts = greatest(now, bucket.ts),
idle_at = greatest(now, bucket.ts) + ceil((capacity + amount - least(
  --@include token_bucket.flow
  , capacity)) * period / rate)::bigint

--@ kept_waiting: the row as if `amount` had been taken at `now`, and not before
value = least(
  --@include token_bucket.flow
  , capacity - amount),
ts = greatest(now, bucket.ts),
idle_at = greatest(now, bucket.ts) + ceil((capacity - least(
  --@include token_bucket.flow
  , capacity - amount)) * period / rate)::bigint

--@ reserved_wait: microseconds from `now` until the balance `left_over` at `left_at`, brought below 0 by `amount`, is there
least(
  ceil(
    - left_over * period / rate
    - least(0.001, (1e-9 + 1e-14 * greatest(capacity, abs(left_over + amount))) / 2 * period / rate)),
  1e18
)::bigint + (left_at - now)

--@ validate: sets `reason` if an option does not apply
IF start IS NOT NULL OR resolution IS NOT NULL THEN
  reason := 'start and resolution do not apply to a token bucket';
END IF;
