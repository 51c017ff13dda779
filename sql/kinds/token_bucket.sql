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
bucket.value :=
  --@include token_bucket.balance
;
bucket.ts := now;
balance := bucket.value;

--@ take: `count` tokens
bucket.value := bucket.value - count;

--@ credit: `count` tokens come back
bucket.value := least(bucket.value + count, capacity);

--@ wait: microseconds from `now` until the balance has grown by `missing`
wait := ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate));

--@ idle: when the bucket is full again
bucket.idle_at :=
  --@include token_bucket.idle_at
;

--@ balance: at `moment`; a clock that steps back takes nothing
least(bucket.value + (greatest(moment, bucket.ts) - bucket.ts)::double precision * rate / period, capacity)

--@ idle_at: when the bucket is full again, once `amount` is taken at `moment`
greatest(moment, bucket.ts) + least(greatest(ceil((
  capacity + amount -
  --@include token_bucket.balance
) * period / rate), 0), 1e18)::bigint

--@ enough: to take `amount` at `moment`; as forgiving as `tolerance` below
AND
--@include token_bucket.balance
- amount >= - (1e-9 + 1e-14 * capacity)

--@ taken: the row after that
value =
  --@include token_bucket.balance
  - amount,
ts = greatest(moment, bucket.ts),
idle_at =
  --@include token_bucket.idle_at

--@ left_over: the balance of the row after that
CASE WHEN abs(bucket.value) <= 1e-9 + 1e-14 * capacity THEN 0 ELSE bucket.value END

--@ kept_waiting: the row as if `amount` had been taken at `moment` and not before
value = least(
  --@include token_bucket.balance
  , capacity - amount),
ts = greatest(moment, bucket.ts),
idle_at = greatest(moment, bucket.ts) + least(greatest(ceil((
  capacity - least(
    --@include token_bucket.balance
    , capacity - amount)
) * period / rate), 0), 1e18)::bigint

--@ validate: sets `reason` if an option does not apply
IF start IS NOT NULL OR resolution IS NOT NULL THEN
  reason := 'start and resolution do not apply to a token bucket';
END IF;
