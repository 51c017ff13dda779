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
  --@kinds declare

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
        --@include put_away
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
            --@include put_away
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
              --@kinds fresh
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
            --@kinds advance else
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
              --@kinds credit
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
            --@kinds reserve
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
            --@kinds wait
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
          --@kinds take
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
    --@include put_away
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

--@ part put_away: the bucket in hand goes back to the others
IF touched THEN
  IF present THEN
    --@kinds idle
  END IF;
  rows[in_hand] := bucket;
  row_present[in_hand] := present;
  touched := false;
END IF;

--@ part balance_of_counts: for kinds that keep a balance
IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
  FOREACH part IN ARRAY bucket.earlier_counts[3:] LOOP
    bucket.value := bucket.value + part;
  END LOOP;
  bucket.value := capacity - bucket.value;
  bucket.earlier_counts := NULL;
END IF;
