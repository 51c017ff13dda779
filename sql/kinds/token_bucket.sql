-- token_bucket: `rate` tokens per `period` flow in all the time, up to `capacity`.
-- Source: J. Turner, "New directions in communications (or which way to the information age?)", IEEE
-- Communications Magazine 24(10), 1986, in the form of two numbers (value, ts) brought up to date when read, as in
-- F. Pachot, "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)", 2022, and Convex's rate limiter.

--@ fresh: the state of a bucket without a row, at `now`
stored := capacity;
since := now;
earlier := NULL;

--@ advance: from `since` to `now`; sets `balance`
IF earlier IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
  FOREACH part IN ARRAY earlier LOOP
    stored := stored + part;
  END LOOP;
  stored := capacity - stored;
  earlier := NULL;
END IF;
stored := least(stored + (now - since)::double precision * rate / period, capacity);
since := now;
balance := stored;

--@ take: `count` tokens
stored := stored - count;

--@ credit: `count` tokens come back
stored := least(stored + count, capacity);

--@ wait: microseconds from `now` until the balance has grown by `missing`
wait := ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate));

--@ idle: when the bucket is full again
idle := since + least(ceil((capacity - stored) * period / rate), 1e18)::bigint;

--@ validate: sets `reason` if an option does not apply
IF start IS NOT NULL OR resolution IS NOT NULL THEN
  reason := 'start and resolution do not apply to a token bucket';
END IF;
