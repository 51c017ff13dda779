-- Rate limits in PostgreSQL: the table and its functions, in the schema public.
-- Put together from sql/ by `BLESS=1 cargo test --test suite sql_sources`: change it there.
-- For another schema, replace each `public.`. May be run again.

-- One row a bucket: two numbers (value, ts) and what a sliding window remembers.
--
-- The row is updated in place (HOT): no index holds a column that changes, and every page keeps room for the
-- next version. A distributed engine spreads its rows by the first column of the primary key; YugabyteDB would
-- put all keys of one name, or all shards of one key, on one tablet, so there the whole key is hashed.
DO $table$
DECLARE
  yugabyte CONSTANT boolean := pg_catalog.version() LIKE '%-YB-%';
BEGIN
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE TABLE IF NOT EXISTS public.rate_limits (
      name text COLLATE "C" NOT NULL,
      key text COLLATE "C" NOT NULL,
      shard integer NOT NULL DEFAULT 0,
      value double precision NOT NULL,
      ts bigint NOT NULL,
      idle_at bigint NOT NULL,
      earlier_counts double precision[],
      CONSTRAINT rate_limits_pkey PRIMARY KEY (%s)
    ) %s
    $ddl$,
    CASE WHEN yugabyte THEN '(name, key, shard) HASH' ELSE 'name, key, shard' END,
    CASE WHEN yugabyte THEN '' ELSE 'WITH (fillfactor = 70)' END
  );
END
$table$;

COMMENT ON TABLE public.rate_limits IS
  'Rate limit buckets. A bucket without a row is full. Written by rate_limit_decide only.';
COMMENT ON COLUMN public.rate_limits.name IS 'The limit''s name.';
COMMENT ON COLUMN public.rate_limits.key IS 'Who is limited; empty for a global limit.';
COMMENT ON COLUMN public.rate_limits.shard IS 'The part of a sharded bucket; 0 for the others.';
COMMENT ON COLUMN public.rate_limits.value IS
  'The balance at ts, negative while tokens are owed; for a sliding window the count of the sub-interval that holds ts.';
COMMENT ON COLUMN public.rate_limits.ts IS
  'Microseconds since the Unix epoch: to_timestamp(ts / 1e6).';
COMMENT ON COLUMN public.rate_limits.idle_at IS
  'The moment, in microseconds since the Unix epoch, from which the row equals no row.';
COMMENT ON COLUMN public.rate_limits.earlier_counts IS
  'For a sliding window: its period and start, which name its grid, then the counts of the sub-intervals before, newest first. NULL for the other kinds.';

-- The limiter's clock: microseconds since the Unix epoch. clock_timestamp(), because now() stands still in a
-- transaction and would give a waiter the time at which it began to wait.
CREATE OR REPLACE FUNCTION public.rate_limit_clock()
RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
  SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
$function$;

-- The rules for a limit, for those who call from SQL; the client knows the same before it sends anything.
CREATE OR REPLACE FUNCTION public.rate_limit_validate(
  kind text,
  rate double precision,
  period bigint,
  capacity double precision,
  max_reserved double precision,
  start bigint,
  resolution integer
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  reason text;
BEGIN
  -- NaN and infinity are above all other numbers; NULL is not true. The bounds keep every product finite.
  IF NOT coalesce(rate BETWEEN 1e-100 AND 1e100, false) THEN
    reason := format('the rate %s is not a number from 1e-100 to 1e100', coalesce(rate::text, 'NULL'));
  ELSIF NOT coalesce(period BETWEEN 1 AND 3155760000000000, false) THEN
    reason := 'the period is not between 1 microsecond and 36525 days';
  ELSIF NOT (capacity BETWEEN 0 AND 1e100) THEN
    reason := format('the capacity %s is not a number from 0 to 1e100', capacity);
  ELSIF NOT (max_reserved BETWEEN 0 AND 1e100) THEN
    reason := format('max_reserved %s is not a number from 0 to 1e100', max_reserved);
  ELSIF NOT (resolution BETWEEN 1 AND 1000) THEN
    reason := format('the resolution %s is not between 1 and 1000', resolution);
  ELSIF kind = 'fixed_window' THEN
    IF resolution IS NOT NULL THEN
      reason := 'resolution does not apply to a fixed window';
    END IF;
  ELSIF kind = 'sliding_window' THEN
    IF capacity IS NOT NULL OR max_reserved IS NOT NULL THEN
      reason := 'capacity and max_reserved do not apply to a sliding window';
    END IF;
  ELSIF kind = 'token_bucket' THEN
    IF start IS NOT NULL OR resolution IS NOT NULL THEN
      reason := 'start and resolution do not apply to a token bucket';
    END IF;
  ELSE
    reason := format('there is no kind "%s"', coalesce(kind, 'NULL'));
  END IF;
  IF reason IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_limit: %', reason
      USING ERRCODE = 'invalid_parameter_value', HINT = 'See the kinds of limits and their options.';
  END IF;
END
$function$;

-- The one place where limits are decided. Every call comes here: standalone, in a caller's transaction, in batches,
-- replayed, from psql.
--
-- A call is an all-or-nothing group of items; an item asks one limit for a count of tokens from one bucket (name, key).
-- Calls are decided in the order given; each sees what the calls before it took.
--
--   limit_*     one element a limit; NULL stands for an option that is not set
--   bucket_*    one element a bucket, no bucket twice
--   item_*      one element an item: the index of its bucket and of its limit, and the count
--   call_ops    limit | check | credit | charge | reset
--   call_sizes  the number of items of each call; NULL: one each. A call names a bucket once (the client adds up)
--   call_ats    the clock for each call, in microseconds since the Unix epoch (1800 to 2199); NULL: the database's
--   results     one element a call, then one an item; waits in microseconds, NULL where there is none. For an allowed
--               call the wait is that of a reservation, for a refused one the time after which it would pass.
--
-- Exactness. All rows are read first, then all are written, both in the order of (name, key, shard) by bytes, so that
-- two statements never wait for each other in a circle. Under REPEATABLE READ and SERIALIZABLE a row that changed after
-- the snapshot makes the write fail (40001). Under READ COMMITTED rows have to be locked before they are read for a
-- decision; the first pass does without, because a denial needs no lock, and writes nothing.
-- Nothing here catches an exception: a caught 40001 would let the transaction commit on what it should not have read.
-- Every access names the full primary key, and no sequential scan is planned while the table is small: the plan of a
-- prepared statement stays when the table has grown.
CREATE OR REPLACE FUNCTION public.rate_limit_decide(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  bucket_names text[],
  bucket_keys text[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  call_ops text[],
  call_reserves boolean[],
  call_sizes integer[],
  call_ats bigint[],
  OUT call_ok boolean[],
  OUT call_waits bigint[],
  OUT call_values double precision[],
  OUT item_refused boolean[],
  OUT item_values double precision[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $function$
DECLARE
  buckets CONSTANT integer := coalesce(cardinality(bucket_names), 0);
  sorted integer[];
  locking boolean; -- the second pass of READ COMMITTED
  pending boolean; -- something is to be written
  clock bigint;

  -- The buckets.
  rows public.rate_limits[];
  row_exists boolean[]; -- there is a row in the table
  row_present boolean[]; -- there is to be one
  row_changed boolean[];

  -- The bucket in hand: what the algebra of a kind reads and writes.
  in_hand integer;
  limit_in_hand integer;
  moment bigint; -- the clock's reading it was brought up to
  touched boolean; -- changed since it was taken up
  present boolean;
  bucket public.rate_limits;
  kind text;
  rate double precision;
  period bigint;
  capacity double precision;
  resolution integer;
  now bigint; -- `moment`, but never before `bucket.ts`: a clock that steps back takes nothing
  count double precision;
  balance double precision; -- at `now`
  tolerance double precision; -- what rounding may do to a balance, in tokens
  missing double precision;
  wait double precision;
  part double precision;
  opened bigint; -- the start of the window that holds `now`
  sub_interval bigint; -- the number, on the grid, of the sub-interval that holds `now`
  gone double precision; -- the fraction of it that is gone by

  -- The call at hand.
  op text;
  at bigint;
  first_item integer;
  last_item integer := 0;
  grouped boolean;
  refused boolean;
  ok boolean;
  done boolean;
  after double precision;
  least_balance double precision; -- how far down this call may go; NULL: without bound
  slack double precision; -- the tolerance at that depth
  undo_rows public.rate_limits[];
  undo_present boolean[];
  undo_balance double precision[];

  b integer;
BEGIN
  IF buckets > 1 THEN
    SELECT array_agg(i ORDER BY bucket_names[i] COLLATE "C", bucket_keys[i] COLLATE "C")
    INTO sorted
    FROM generate_series(1, buckets) AS i;
    FOR i IN 2 .. buckets LOOP
      IF bucket_names[sorted[i]] = bucket_names[sorted[i - 1]] AND bucket_keys[sorted[i]] = bucket_keys[sorted[i - 1]] THEN
        RAISE EXCEPTION 'a bucket of the limit "%" is listed twice', bucket_names[sorted[i]]
          USING ERRCODE = 'invalid_parameter_value', HINT = 'List a bucket once; several items may name it.';
      END IF;
    END LOOP;
  ELSE
    sorted := ARRAY[1];
  END IF;

  LOOP
    -- Read.
    FOR i IN 1 .. buckets LOOP
      b := sorted[i];
      IF locking THEN
        -- A row that is not there cannot be locked: put one there, or wait for the one who does.
        LOOP
          SELECT r.*
          INTO bucket
          FROM public.rate_limits AS r
          WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
          FOR NO KEY UPDATE;
          row_exists[b] := FOUND;
          row_present[b] := FOUND;
          EXIT WHEN FOUND;
          INSERT INTO public.rate_limits (name, key, shard, value, ts, idle_at)
          VALUES (bucket_names[b], bucket_keys[b], 0, 0, 0, 0)
          ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
          row_exists[b] := FOUND;
          EXIT WHEN FOUND;
        END LOOP;
      ELSE
        SELECT r.*
        INTO bucket
        FROM public.rate_limits AS r
        WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0;
        row_exists[b] := FOUND;
        row_present[b] := FOUND;
      END IF;
      rows[b] := bucket;
    END LOOP;

    -- After the locks: a waiter must not decide by the time at which it began to wait.
    clock := public.rate_limit_clock();

    -- Decide.
    FOR nth IN 1 .. coalesce(cardinality(call_ops), 0) LOOP
      op := coalesce(call_ops[nth], '');
      at := coalesce(call_ats[nth], clock);
      first_item := last_item + 1;
      last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 1);
      grouped := last_item > first_item;
      refused := false;
      call_waits[nth] := NULL;
      IF grouped THEN
        IF touched THEN
          IF present THEN
            IF kind = 'fixed_window' THEN
              bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
            ELSIF kind = 'sliding_window' THEN
              DECLARE
                newest integer := 0; -- the newest sub-interval with a count
                left_at bigint; -- the number of the sub-interval at whose start it has left
                part_of bigint; -- the place of that one in its period
              BEGIN
                bucket.idle_at := bucket.ts;
                IF bucket.value = 0 THEN
                  newest := NULL;
                  FOR i IN 1 .. resolution LOOP
                    IF bucket.earlier_counts[i + 2] <> 0 THEN
                      newest := i;
                      EXIT;
                    END IF;
                  END LOOP;
                END IF;
                IF newest IS NOT NULL THEN
                  left_at := sub_interval - newest + resolution + 1;
                  part_of := (left_at % resolution + resolution) % resolution;
                  -- Whole periods and parts apart, or the product would not fit; parts rounded up.
                  bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                    + (part_of * period + resolution - 1) / resolution;
                END IF;
              END;
            ELSIF kind = 'token_bucket' THEN
              bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
            END IF;
          END IF;
          rows[in_hand] := bucket;
          row_present[in_hand] := present;
          touched := false;
        END IF;
        in_hand := NULL;
      END IF;

      FOR item IN first_item .. last_item LOOP
        IF grouped THEN
          b := item_buckets[item];
          undo_rows[item] := rows[b];
          undo_present[item] := row_present[b];
        END IF;
        count := item_counts[item];
        IF NOT coalesce(count = 0 OR count BETWEEN 1e-100 AND 1e100, false) THEN -- NaN is above all numbers here.
          RAISE EXCEPTION 'invalid_count: the count % for the limit "%" is not 0 or a number from 1e-100 to 1e100',
            count, bucket_names[item_buckets[item]]
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for a count of 0 or more.';
        END IF;

        done := op <> 'credit' AND op <> 'reset';
        LOOP
          IF in_hand IS DISTINCT FROM item_buckets[item]
            OR limit_in_hand <> item_limits[item]
            OR moment IS DISTINCT FROM at
          THEN
            IF touched THEN
              IF present THEN
                IF kind = 'fixed_window' THEN
                  bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
                ELSIF kind = 'sliding_window' THEN
                  DECLARE
                    newest integer := 0; -- the newest sub-interval with a count
                    left_at bigint; -- the number of the sub-interval at whose start it has left
                    part_of bigint; -- the place of that one in its period
                  BEGIN
                    bucket.idle_at := bucket.ts;
                    IF bucket.value = 0 THEN
                      newest := NULL;
                      FOR i IN 1 .. resolution LOOP
                        IF bucket.earlier_counts[i + 2] <> 0 THEN
                          newest := i;
                          EXIT;
                        END IF;
                      END LOOP;
                    END IF;
                    IF newest IS NOT NULL THEN
                      left_at := sub_interval - newest + resolution + 1;
                      part_of := (left_at % resolution + resolution) % resolution;
                      -- Whole periods and parts apart, or the product would not fit; parts rounded up.
                      bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                        + (part_of * period + resolution - 1) / resolution;
                    END IF;
                  END;
                ELSIF kind = 'token_bucket' THEN
                  bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
                END IF;
              END IF;
              rows[in_hand] := bucket;
              row_present[in_hand] := present;
              touched := false;
            END IF;
            -- Take the bucket up and bring it to the moment.
            in_hand := item_buckets[item];
            limit_in_hand := item_limits[item];
            moment := at;
            kind := limit_kinds[limit_in_hand];
            rate := limit_rates[limit_in_hand];
            period := limit_periods[limit_in_hand];
            capacity := coalesce(limit_capacities[limit_in_hand], rate);
            resolution := coalesce(limit_resolutions[limit_in_hand], 1);
            present := row_present[in_hand];
            bucket := rows[in_hand];
            IF present THEN
              now := greatest(moment, bucket.ts);
            ELSE
              now := moment;
              IF kind = 'fixed_window' THEN
                bucket.value := capacity;
                bucket.ts := NULL;
                bucket.earlier_counts := NULL;
              ELSIF kind = 'sliding_window' THEN
                bucket.value := 0;
                bucket.ts := now;
                bucket.earlier_counts := NULL;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := capacity;
                bucket.ts := now;
                bucket.earlier_counts := NULL;
              END IF;
            END IF;
            -- What would spoil a row is caught here, whoever calls; which option suits which kind, by those who do.
            IF NOT coalesce(
              rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000
                AND capacity BETWEEN 0 AND 1e100 AND coalesce(limit_max_reserved[limit_in_hand] BETWEEN 0 AND 1e100, true)
                AND resolution BETWEEN 1 AND 1000
                AND bucket_names[in_hand] IS NOT NULL AND bucket_keys[in_hand] IS NOT NULL,
              false)
            THEN
              RAISE EXCEPTION 'item % names a limit or a bucket that is not listed or not valid', item
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate; indices count from 1.';
            ELSIF kind = 'fixed_window' THEN
              DECLARE
                phase bigint := limit_starts[limit_in_hand];
                opened_before bigint;
              BEGIN
                IF phase IS NULL THEN
                  phase := ('x' || substr(encode(sha256(convert_to(
                    bucket_names[in_hand] || ':' || bucket_keys[in_hand], 'UTF8')), 'hex'), 1, 14))::bit(56)::bigint;
                END IF;
                IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
                  FOREACH part IN ARRAY bucket.earlier_counts[3:] LOOP
                    bucket.value := bucket.value + part;
                  END LOOP;
                  bucket.value := capacity - bucket.value;
                  bucket.earlier_counts := NULL;
                END IF;
                -- Twice %, because the remainder of a negative number is negative. A phase may be longer than the period.
                opened := now - ((now - phase % period) % period + period) % period;
                opened_before := bucket.ts - ((bucket.ts - phase % period) % period + period) % period;
                bucket.value := least(bucket.value + coalesce(rate * ((opened - opened_before) / period), 0), capacity);
                -- A longer period may have opened before `ts`: then `ts` stays, or a shorter one later would grant windows twice.
                bucket.ts := greatest(bucket.ts, opened);
                balance := bucket.value;
              END;
            ELSIF kind = 'sliding_window' THEN
              DECLARE
                phase CONSTANT bigint := coalesce(limit_starts[limit_in_hand] % period, 0);
                -- Microseconds gone of the period that holds `ts`, `now`. Twice %: the remainder of a negative number is negative.
                inside_before CONSTANT bigint := ((bucket.ts - phase) % period + period) % period;
                inside CONSTANT bigint := ((now - phase) % period + period) % period;
                counts double precision[] := bucket.earlier_counts[3:]; -- c[1] to c[n]
                steps bigint;
                used double precision;
              BEGIN
                IF bucket.earlier_counts IS NULL THEN
                  IF present THEN -- The row was another kind's: what is missing from it is used.
                    bucket.value := greatest(rate - bucket.value, 0);
                  END IF;
                  counts := array_fill(0::double precision, ARRAY[resolution]);
                ELSIF cardinality(counts) <> resolution
                  OR bucket.earlier_counts[1] <> period
                  OR bucket.earlier_counts[2] <> phase
                THEN -- The grid has changed: all counts move to the newest sub-interval, so that none leaves too soon.
                  FOREACH part IN ARRAY counts LOOP
                    bucket.value := bucket.value + part;
                  END LOOP;
                  counts := array_fill(0::double precision, ARRAY[resolution]);
                END IF;
                sub_interval := (now - phase - inside) / period * resolution + inside * resolution / period;
                steps := least(
                  sub_interval - (bucket.ts - phase - inside_before) / period * resolution - inside_before * resolution / period,
                  resolution + 1);
                WHILE steps > 0 LOOP
                  counts := bucket.value || counts[1 : resolution - 1];
                  bucket.value := 0;
                  steps := steps - 1;
                END LOOP;
                bucket.ts := now;
                bucket.earlier_counts := ARRAY[period, phase]::double precision[] || counts;
                gone := (inside * resolution % period)::double precision / period;
                used := bucket.value + counts[resolution] * (1 - gone);
                FOR i IN 1 .. resolution - 1 LOOP
                  used := used + counts[i];
                END LOOP;
                balance := rate - used;
              END;
            ELSIF kind = 'token_bucket' THEN
              IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
                FOREACH part IN ARRAY bucket.earlier_counts[3:] LOOP
                  bucket.value := bucket.value + part;
                END LOOP;
                bucket.value := capacity - bucket.value;
                bucket.earlier_counts := NULL;
              END IF;
              bucket.value := least(bucket.value + (now - bucket.ts)::double precision * rate / period, capacity);
              bucket.ts := now;
              balance := bucket.value;
            ELSE
              RAISE EXCEPTION 'item % has a limit of unknown kind', item
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate.';
            END IF;
            tolerance := 1e-9 + 1e-14 * greatest(capacity, abs(balance));
          END IF;
          EXIT WHEN done;
          -- These two change the state itself; then it is taken up again, to see the balance.
          IF present THEN
            IF op = 'reset' THEN
              present := false;
            ELSE
              IF kind = 'fixed_window' THEN
                bucket.value := least(bucket.value + count, capacity);
              ELSIF kind = 'sliding_window' THEN
                DECLARE
                  counts double precision[] := bucket.earlier_counts;
                  back double precision := least(count, bucket.value);
                  rest double precision := count - back;
                BEGIN
                  bucket.value := bucket.value - back;
                  FOR i IN 1 .. resolution LOOP
                    EXIT WHEN rest <= 0;
                    back := least(rest, counts[i + 2]);
                    counts[i + 2] := counts[i + 2] - back;
                    rest := rest - back;
                  END LOOP;
                  bucket.earlier_counts := counts;
                END;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := least(bucket.value + count, capacity);
              END IF;
            END IF;
            row_changed[in_hand] := true;
            pending := true;
            touched := true;
            moment := NULL;
          END IF;
          done := true;
        END LOOP;

        after := balance;
        ok := true;
        wait := NULL;
        IF op = 'limit' OR op = 'check' THEN
          after := balance - count;
          least_balance := 0;
          slack := tolerance;
          IF call_reserves[nth] THEN
            IF kind = 'sliding_window' THEN
              RAISE EXCEPTION 'reserve_unsupported: the sliding window "%" cannot reserve', bucket_names[in_hand]
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a token bucket or a fixed window.';
            END IF;
            least_balance := - limit_max_reserved[limit_in_hand];
            slack := tolerance + 1e-14 * coalesce(- least_balance, 0);
          END IF;
          IF count > capacity - least_balance + slack THEN
            RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
              count, bucket_names[in_hand], capacity - least_balance
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for less at once, or raise the capacity.';
          END IF;
          ok := least_balance IS NULL OR after >= least_balance - slack;
          IF NOT ok OR after < - tolerance THEN
            missing := CASE WHEN ok THEN - after ELSE least_balance - after END;
            IF kind = 'fixed_window' THEN
              wait := opened - now + greatest(ceil((missing - tolerance) / rate), 1) * period;
            ELSIF kind = 'sliding_window' THEN
              DECLARE
                room CONSTANT double precision := rate - balance - missing; -- what may be used then
                whole double precision := bucket.value; -- what counts whole in the sub-interval looked at
                counts CONSTANT double precision[] := bucket.earlier_counts[3:];
                leaving double precision;
              BEGIN
                FOR i IN 1 .. resolution - 1 LOOP
                  whole := whole + counts[i];
                END LOOP;
                -- In the sub-interval j steps ahead, c[n-j] is the one that leaves.
                FOR j IN 0 .. resolution LOOP
                  leaving := CASE WHEN j < resolution THEN counts[resolution - j] ELSE bucket.value END;
                  IF j = resolution THEN
                    whole := 0;
                  END IF;
                  IF whole <= room + tolerance THEN
                    IF leaving > 0 THEN
                      wait := (j + greatest(least(1 - (room - whole) / leaving, 1), 0) - gone) * period / resolution;
                      wait := ceil(wait - least(0.001, tolerance / 2 * period / resolution / leaving));
                    ELSE
                      wait := ceil((j - gone) * period / resolution - 0.001);
                    END IF;
                    EXIT;
                  END IF;
                  IF j + 1 < resolution THEN
                    whole := whole - counts[resolution - j - 1];
                  ELSE
                    whole := 0;
                  END IF;
                END LOOP;
              END;
            ELSIF kind = 'token_bucket' THEN
              wait := ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate));
            END IF;
            -- A balance does not grow before the clock has come to where the row is.
            wait := least(wait, 1e18) + (now - moment);
            IF ok = NOT refused THEN
              call_waits[nth] := greatest(call_waits[nth], wait::bigint);
            ELSIF NOT ok THEN -- The first refusal: what the others would have waited for is taken back.
              call_waits[nth] := wait::bigint;
            END IF;
          END IF;
          refused := refused OR NOT ok;
        ELSIF op = 'charge' THEN
          after := balance - count;
        ELSIF op <> 'credit' AND op <> 'reset' THEN
          RAISE EXCEPTION 'unknown operation "%"', op
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use limit, check, credit, charge or reset.';
        END IF;

        item_refused[item] := NOT ok;
        item_values[item] := CASE
          WHEN NOT ok THEN balance
          WHEN abs(after) <= tolerance THEN 0
          ELSE after
        END;
        IF grouped THEN
          undo_balance[item] := balance;
        END IF;
        -- In a group provisionally, until all of it has passed.
        IF op = 'charge' OR (op = 'limit' AND (ok OR grouped)) THEN
          IF kind = 'fixed_window' THEN
            bucket.value := bucket.value - count;
          ELSIF kind = 'sliding_window' THEN
            bucket.value := bucket.value + count;
          ELSIF kind = 'token_bucket' THEN
            bucket.value := bucket.value - count;
          END IF;
          balance := after;
          present := true;
          touched := true;
          IF NOT grouped THEN
            row_changed[in_hand] := true;
            pending := true;
          END IF;
        END IF;
      END LOOP;

      IF grouped AND (refused OR op = 'check') THEN
        in_hand := NULL;
        touched := false;
        FOR item IN REVERSE last_item .. first_item LOOP
          b := item_buckets[item];
          rows[b] := undo_rows[item];
          row_present[b] := undo_present[item];
          IF refused THEN
            item_values[item] := undo_balance[item];
          END IF;
        END LOOP;
      END IF;
      call_ok[nth] := NOT refused;
      call_values[nth] := item_values[first_item];
      IF grouped THEN
        FOR item IN first_item .. last_item LOOP
          call_values[nth] := least(call_values[nth], item_values[item]);
          IF (op = 'limit' AND NOT refused) OR op = 'charge' THEN
            row_changed[item_buckets[item]] := true;
            pending := true;
          END IF;
        END LOOP;
      END IF;
    END LOOP;
    IF touched THEN
      IF present THEN
        IF kind = 'fixed_window' THEN
          bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
        ELSIF kind = 'sliding_window' THEN
          DECLARE
            newest integer := 0; -- the newest sub-interval with a count
            left_at bigint; -- the number of the sub-interval at whose start it has left
            part_of bigint; -- the place of that one in its period
          BEGIN
            bucket.idle_at := bucket.ts;
            IF bucket.value = 0 THEN
              newest := NULL;
              FOR i IN 1 .. resolution LOOP
                IF bucket.earlier_counts[i + 2] <> 0 THEN
                  newest := i;
                  EXIT;
                END IF;
              END LOOP;
            END IF;
            IF newest IS NOT NULL THEN
              left_at := sub_interval - newest + resolution + 1;
              part_of := (left_at % resolution + resolution) % resolution;
              -- Whole periods and parts apart, or the product would not fit; parts rounded up.
              bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                + (part_of * period + resolution - 1) / resolution;
            END IF;
          END;
        ELSIF kind = 'token_bucket' THEN
          bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
        END IF;
      END IF;
      rows[in_hand] := bucket;
      row_present[in_hand] := present;
      touched := false;
    END IF;
    IF last_item <> coalesce(cardinality(item_counts), 0) THEN
      RAISE EXCEPTION 'the calls have % items, and % are listed', last_item, coalesce(cardinality(item_counts), 0)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'The call_sizes add up to the items.';
    END IF;

    EXIT WHEN locking
      OR pending IS NOT TRUE
      OR current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted');
    locking := true;
    pending := NULL;
    row_changed := NULL;
    in_hand := NULL;
    last_item := 0;
  END LOOP;

  -- Write.
  FOR i IN 1 .. buckets LOOP
    b := sorted[i];
    bucket := rows[b];
    IF row_exists[b] AND row_present[b] THEN
      CONTINUE WHEN row_changed[b] IS NOT TRUE;
      UPDATE public.rate_limits AS r
      SET
        value = bucket.value,
        ts = bucket.ts,
        idle_at = bucket.idle_at,
        earlier_counts = bucket.earlier_counts
      WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0;
    ELSIF row_present[b] THEN
      INSERT INTO public.rate_limits (name, key, shard, value, ts, idle_at, earlier_counts)
      VALUES (
        bucket_names[b], bucket_keys[b], 0, bucket.value, bucket.ts, bucket.idle_at, bucket.earlier_counts
      )
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
    ELSIF row_exists[b] THEN -- Reset, or put there only to be locked.
      DELETE FROM public.rate_limits AS r
      WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0;
    ELSE
      CONTINUE;
    END IF;
    IF NOT FOUND THEN -- What was read is no longer what is there.
      RAISE EXCEPTION 'could not serialize access to a bucket of the limit "%"', bucket_names[b]
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
  END LOOP;
END
$function$;

-- One call on one bucket, for the functions below: options as SQL types, then the arrays of rate_limit_decide.
CREATE OR REPLACE FUNCTION public.rate_limit_single(
  op text,
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision,
  count double precision,
  reserve boolean,
  max_reserved double precision,
  start interval,
  resolution integer,
  shards integer,
  at timestamp with time zone,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
  IF coalesce(octet_length(name) NOT BETWEEN 1 AND 255, true) THEN
    RAISE EXCEPTION 'invalid_name: a limit''s name has 1 to 255 bytes, not %', coalesce(octet_length(name)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the limit a short name.';
  END IF;
  IF coalesce(octet_length(key) > 1024, true) THEN
    RAISE EXCEPTION 'invalid_key: a key has at most 1024 bytes, not %', coalesce(octet_length(key)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten or hash the key; the empty key is the global bucket.';
  END IF;
  IF shards IS DISTINCT FROM 1 THEN
    RAISE EXCEPTION 'invalid_limit: shards is %, and only 1 is supported', coalesce(shards::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave shards out.';
  END IF;
  -- So that they fit into microseconds; the finer bounds stand in rate_limit_validate. NULL is not true.
  IF NOT coalesce(abs(extract(epoch FROM period)) < 1e12, false) OR NOT abs(extract(epoch FROM start)) < 1e12 THEN
    RAISE EXCEPTION 'invalid_limit: the period is not between 1 microsecond and 36525 days, or start is out of reach'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the period as an interval, like ''1 minute''.';
  END IF;
  IF at NOT BETWEEN timestamptz '1800-01-01 00:00:00Z' AND timestamptz '2200-01-01 00:00:00Z' THEN
    RAISE EXCEPTION 'invalid_limit: the clock % is not between the years 1800 and 2199', at
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
  PERFORM public.rate_limit_validate(
    kind,
    rate,
    (extract(epoch FROM period) * 1000000)::bigint,
    capacity,
    max_reserved,
    (extract(epoch FROM start) * 1000000)::bigint,
    resolution
  );
  SELECT d.call_ok[1], d.call_waits[1] * interval '1 microsecond', d.call_values[1]
  INTO ok, retry_after, value
  FROM public.rate_limit_decide(
    ARRAY[kind],
    ARRAY[rate],
    ARRAY[(extract(epoch FROM period) * 1000000)::bigint],
    ARRAY[capacity],
    ARRAY[max_reserved],
    ARRAY[(extract(epoch FROM start) * 1000000)::bigint],
    ARRAY[resolution],
    ARRAY[name],
    ARRAY[key],
    ARRAY[1],
    ARRAY[1],
    ARRAY[count],
    ARRAY[op],
    ARRAY[reserve],
    NULL,
    ARRAY[(extract(epoch FROM at) * 1000000)::bigint]
  ) AS d;
END
$function$;

-- Takes `count` tokens, or says when they could be had. A denial writes nothing.
--   SELECT ok, retry_after, value FROM rate_limit('send_message', 'u1', kind => 'token_bucket', rate => 10, period => '1 minute');
CREATE OR REPLACE FUNCTION public.rate_limit(
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1,
  reserve boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL,
  resolution integer DEFAULT NULL,
  shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
  SELECT s.ok, s.retry_after, s.value
  FROM public.rate_limit_single('limit', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s
$function$;

-- Decides like rate_limit and writes nothing.
CREATE OR REPLACE FUNCTION public.rate_limit_check(
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1,
  reserve boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL,
  resolution integer DEFAULT NULL,
  shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
  SELECT s.ok, s.retry_after, s.value
  FROM public.rate_limit_single('check', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s
$function$;

-- Takes `count` tokens or raises RL429, so that the statement, or the row of a trigger, is refused. The retry time
-- stands in DETAIL, as "Retry after 5.999500 seconds.". Returns the wait of a reservation, NULL where there is none.
CREATE OR REPLACE FUNCTION public.rate_limit_enforce(
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1,
  reserve boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL,
  resolution integer DEFAULT NULL,
  shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL
)
RETURNS interval
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  decision record;
BEGIN
  SELECT s.ok, s.retry_after
  INTO decision
  FROM public.rate_limit_single('limit', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s;
  IF NOT decision.ok THEN
    RAISE EXCEPTION 'rate limit "%" exceeded', name
      USING
        ERRCODE = 'RL429',
        DETAIL = format('Retry after %s seconds.', extract(epoch FROM decision.retry_after)::numeric(30, 6)),
        HINT = 'Wait, then try again.';
  END IF;
  RETURN decision.retry_after;
END
$function$;

-- Forgets one key of a limit: its bucket is full again. Returns the number of rows that are gone.
CREATE OR REPLACE FUNCTION public.rate_limit_reset(name text, key text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
DECLARE
  gone bigint;
BEGIN
  IF name IS NULL OR key IS NULL THEN
    RAISE EXCEPTION 'invalid_key: rate_limit_reset(name, key) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use rate_limit_reset(name) to forget every key of a limit.';
  END IF;
  -- Locked in the order in which decisions take rows.
  WITH doomed AS (
    SELECT r.name, r.key, r.shard
    FROM public.rate_limits AS r
    WHERE r.name = rate_limit_reset.name AND r.key = rate_limit_reset.key
    ORDER BY r.name, r.key, r.shard
    FOR UPDATE
  )
  DELETE FROM public.rate_limits AS r
  USING doomed AS d
  WHERE r.name = d.name AND r.key = d.key AND r.shard = d.shard;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END
$function$;

-- Forgets every key of a limit. Returns the number of rows that are gone.
CREATE OR REPLACE FUNCTION public.rate_limit_reset(name text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  gone bigint;
BEGIN
  IF name IS NULL THEN
    RAISE EXCEPTION 'invalid_name: rate_limit_reset(name) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Name the limit whose keys are to be forgotten.';
  END IF;
  WITH doomed AS (
    SELECT r.name, r.key, r.shard
    FROM public.rate_limits AS r
    WHERE r.name = rate_limit_reset.name
    ORDER BY r.name, r.key, r.shard
    FOR UPDATE
  )
  DELETE FROM public.rate_limits AS r
  USING doomed AS d
  WHERE r.name = d.name AND r.key = d.key AND r.shard = d.shard;
  GET DIAGNOSTICS gone = ROW_COUNT;
  RETURN gone;
END
$function$;

-- Whoever may call these functions may use up any limit: nobody may, until it is granted. The functions run as their
-- owner, so that a role needs EXECUTE only, and can neither read nor change a row by hand.
REVOKE ALL ON TABLE public.rate_limits FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_clock() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_validate(
  text, double precision, bigint, double precision, double precision, bigint, integer
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_decide(
  text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], text[], text[],
  integer[], integer[], double precision[], text[], boolean[], integer[], bigint[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_single(
  text, text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_check(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_enforce(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reset(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reset(text) FROM PUBLIC;
