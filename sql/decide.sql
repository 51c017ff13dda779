-- The one place where limits are decided. Every call comes here: standalone, in a caller's transaction, in batches,
-- replayed, from psql.
--
-- A call is an all-or-nothing group of items; an item asks one limit for a count of tokens from one bucket (name, key).
-- Calls are decided in the order given; each sees what the calls before it took.
--
--   limit_*     one element a limit; NULL stands for an option that is not set, and for a whole array of them
--   bucket_*    one element a bucket, no bucket twice
--   item_*      one element an item: the index of its bucket and of its limit, and the count. NULL: the i-th item asks
--               the i-th bucket, the first limit, for 1
--   call_ops    limit | check | credit | charge | reset; NULL: limit
--   call_reserves  whether a call may take tokens before they are there; NULL: none may
--   call_sizes  the number of items of each call; NULL: one each. A call names a bucket once (the client adds up)
--   call_times  how often a call is made, one time right after the other; NULL: once. Only for `limit` of one item,
--               without a reservation: callers who ask the same are decided in one step
--   call_ats    the clock for each call, in microseconds since the Unix epoch (1800 to 2199); NULL: the database's
--   holds_rows  the caller has locked a row of a sharded bucket already, so that no other one may be waited for
--   results     call_admitted: how many times each call was allowed; NULL: all of them. call_waits: in microseconds, NULL
--               where there is none; for an allowed call that of a reservation, for a refused one the time after which
--               it would pass. item_refused; NULL: none. item_values: the balances after the call; of a sharded bucket
--               estimated, where not all of it was looked at.
--
-- Shards. A bucket of S shards has S rows or none, each with 1/S of the rate, the capacity and max_reserved, and each says
-- how many there are. Either no row owes tokens, or all are alike. So whoever finds enough in one row may take it from
-- there without a look at the others: two rows are drawn, and the fuller one is used (M. Mitzenmacher, "The power of two
-- choices in randomized load balancing", 1996). Where that is not enough, or something else than a take is asked, or the
-- rows are not what the limit says, all of them are gathered into one, decided on like a bucket of one row, and split.
--
-- First an UPDATE, and only for what it leaves a look at each call: plain calls on token buckets that have enough are
-- decided by the UPDATE that takes the tokens, which locks the row before it decides on it, at every isolation level.
-- (F. Pachot, "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)", 2022, decides so, too.)
--
-- Exactness. New rows are put there first, then those that are there are taken, both in the order of (name, key, shard) by
-- bytes, so that two statements do not wait for each other in a circle: who waits for a new row has no other.
-- Under REPEATABLE READ and SERIALIZABLE a row that changed after the snapshot makes the write fail (40001).
-- Under READ COMMITTED rows have to be locked before they are read for a decision; the first pass does without, because
-- a denial needs no lock, and writes nothing.
-- Nothing here catches an exception: a caught 40001 would let the transaction commit on what it should not have read.
-- Every access names the full primary key, and the plan for it must not depend on how large the table was when it was
-- made: so no sequential scan, and no join that reads all of it.
CREATE OR REPLACE FUNCTION public.rate_limit_decide(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  limit_shards integer[],
  bucket_names text[],
  bucket_keys text[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  call_ops text[],
  call_reserves boolean[],
  call_sizes integer[],
  call_times integer[],
  call_ats bigint[],
  holds_rows boolean DEFAULT false,
  OUT call_admitted integer[],
  OUT call_waits bigint[],
  OUT item_refused boolean[],
  OUT item_values double precision[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $function$
#variable_conflict use_column
DECLARE
  buckets CONSTANT integer := coalesce(cardinality(bucket_names), 0);
  items CONSTANT integer := coalesce(cardinality(item_buckets), buckets);
  calls CONSTANT integer := coalesce(cardinality(call_sizes), items);
  sorted integer[]; -- the buckets in the global order
  locks_first boolean; -- READ COMMITTED
  locking boolean; -- the second pass of that
  hurried boolean; -- no other locks may be waited for any more
  again boolean; -- the second pass of the others, after a wait
  pending boolean; -- something is to be written
  clock bigint;

  -- Plain calls, which the UPDATE decides.
  settled integer[];
  settled_values double precision[];
  is_settled boolean[];
  item_calls integer[]; -- the call that an item is part of
  first_short_name text; -- of the first bucket in the global order that has to be gathered
  first_short_key text;

  -- The buckets.
  rows public.rate_limits[];
  row_exists boolean[]; -- there is a row in the table
  row_present boolean[]; -- there is to be one
  row_changed boolean[];
  rows_before public.rate_limits[]; -- as they were read
  present_before boolean[];
  to_update public.rate_limits[];
  to_insert public.rate_limits[];
  to_delete public.rate_limits[];
  written bigint;
  missed bigint := 0;

  -- The shards.
  bucket_shards integer[]; -- how many a bucket is to have; NULL: one
  first_shards integer[]; -- the two drawn
  second_shards integer[];
  chosen_shards integer[]; -- the fuller one of these
  pair_balances double precision[]; -- what those two hold
  beyond_rows double precision[]; -- what the others are thought to hold
  spare_balances double precision[]; -- what the chosen row had left
  asked_counts double precision[]; -- and what was taken from it
  others public.rate_limits[]; -- the row of the other one, `rows` having that of the first
  prefers_first boolean[]; -- because the other one is in use
  looks_at_all boolean[];
  widened boolean; -- since the rows were read
  is_gathered boolean[]; -- `rows` has what is to be decided on
  shares public.rate_limits[]; -- the rows of all buckets that are looked at as a whole
  share_balances double precision[];
  nth_share integer;
  nth_shard integer;
  first_shares integer[];
  share_counts integer[];
  gathered_rows public.rate_limits[];
  gathered_limits integer[];
  gathered_ats bigint[];
  gathered_totals double precision[];
  may_drain boolean[]; -- tokens may be taken from single rows, and the others left as they are
  is_split boolean[]; -- all of its rows were written by an earlier pass
  was_drained boolean[]; -- of the shares, this one was
  is_anchored boolean[]; -- the row of shard 0 is only there to be locked
  rows_found public.rate_limits[];
  drained public.rate_limits[];
  shards_there integer[];
  shards_gone integer[];

  -- The rows that are being gathered.
  parts integer; -- the row in hand is one of so many
  looks integer;
  look_lacks double precision[];
  look_inflows double precision[];
  lack double precision; -- to be full, at `bucket.ts`
  inflow double precision; -- since then
  total double precision;
  pairs boolean; -- the two drawn
  gathers boolean; -- all
  header double precision[];
  kept public.rate_limits;
  kept_balance double precision;
  sums double precision[];

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
  times integer;
  admitted integer;
  one double precision; -- the count of one time
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
  undo_gathered boolean[];
  undo_balance double precision[];

  b integer;
BEGIN
  IF NOT coalesce(
    cardinality(bucket_keys) = buckets AND coalesce(cardinality(item_limits), items) = items
      AND coalesce(cardinality(item_counts), items) = items AND coalesce(cardinality(call_ops), calls) = calls
      AND coalesce(cardinality(call_times), calls) = calls,
    false)
  THEN
    RAISE EXCEPTION 'the arrays for % buckets, % items and % calls differ in length', buckets, items, calls
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element each, or NULL for the whole array.';
  END IF;

  locks_first := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
  --@include plain

  IF limit_shards IS NOT NULL THEN
    --@include draw
  END IF;
  IF item_buckets IS NULL THEN
    FOR i IN 1 .. items LOOP
      item_buckets[i] := i;
    END LOOP;
  END IF;
  item_limits := coalesce(item_limits, array_fill(1, ARRAY[items]));
  item_counts := coalesce(item_counts, array_fill(1::double precision, ARRAY[items]));
  call_ops := coalesce(call_ops, array_fill('limit'::text, ARRAY[calls]));

  last_item := 0;
  LOOP
    is_gathered := NULL;
    may_drain := NULL;
    widened := false;
    IF again IS NOT TRUE THEN
      --@include read
    END IF;
    rows_before := rows;
    present_before := row_present;
    asked_counts := NULL;

    -- After the locks: a waiter must not decide by the time at which it began to wait.
    clock := public.rate_limit_clock();

    -- Decide.
    FOR nth IN 1 .. calls LOOP
      times := CASE WHEN call_times IS NULL THEN 1 ELSE call_times[nth] END;
      first_item := last_item + 1;
      last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 1);
      IF is_settled[first_item] THEN
        call_admitted[nth] := times;
        call_waits[nth] := NULL;
        FOR item IN first_item .. last_item LOOP
          item_refused[item] := false;
        END LOOP;
        CONTINUE;
      END IF;
      op := coalesce(call_ops[nth], '');
      at := coalesce(call_ats[nth], clock);
      grouped := last_item > first_item;
      refused := false;
      call_waits[nth] := NULL;
      IF grouped THEN
        --@include put_away
        in_hand := NULL;
      END IF;
      IF NOT coalesce(times = 1 OR (times > 1 AND op = 'limit' AND NOT grouped AND call_reserves[nth] IS NOT TRUE), false)
      THEN
        RAISE EXCEPTION 'call % cannot be made % times at once', nth, coalesce(times::text, 'NULL')
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Only "limit" of one item, without reserving, can.';
      END IF;
      admitted := 0;

      <<each_item>>
      FOR item IN first_item .. last_item LOOP
        IF grouped THEN
          b := item_buckets[item];
          undo_rows[item] := rows[b];
          undo_present[item] := row_present[b];
          undo_gathered[item] := is_gathered[b];
        END IF;
        count := item_counts[item];
        IF NOT coalesce(count = 0 OR count BETWEEN 1e-100 AND 1e100, false) THEN -- NaN is above all numbers here.
          RAISE EXCEPTION 'invalid_count: the count % for the limit "%" is not 0 or a number from 1e-100 to 1e100',
            count, bucket_names[item_buckets[item]]
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for a count of 0 or more.';
        END IF;

        done := op <> 'credit' AND op <> 'reset';
        CONTINUE WHEN widened AND looks_at_all[item_buckets[item]] AND share_counts[item_buckets[item]] IS NULL;
        LOOP
          IF in_hand IS DISTINCT FROM item_buckets[item]
            OR limit_in_hand <> item_limits[item]
            OR moment IS DISTINCT FROM at
          THEN
            --@include put_away
            --@include take_up
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
            IF parts = 1 THEN
              least_balance := - limit_max_reserved[limit_in_hand];
              slack := tolerance + 1e-14 * coalesce(- least_balance, 0);
            END IF;
          END IF;
          IF parts > 1 THEN -- One row can only say yes.
            IF balance - count * times < - tolerance THEN
              --@include widen
            END IF;
          ELSIF count > capacity - least_balance + slack THEN
            RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
              count, bucket_names[in_hand], capacity - least_balance
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for less at once, or raise the capacity.';
          END IF;
          IF times > 1 THEN -- All but one at once, as far as there is enough; that one goes the way of a single call.
            admitted := CASE WHEN count = 0 THEN times - 1 ELSE floor(least((balance + slack) / count, times - 1)) END;
            IF admitted > 0 AND balance >= - slack THEN
              one := count;
              count := one * admitted;
              --@kinds take
              balance := balance - count;
              count := one;
              after := balance - count;
              present := true;
              touched := true;
              row_changed[in_hand] := true;
              pending := true;
            ELSE
              admitted := 0;
            END IF;
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
          IF parts > 1 AND after < - tolerance THEN
            --@include widen
          END IF;
        ELSIF op <> 'credit' AND op <> 'reset' THEN
          RAISE EXCEPTION 'unknown operation "%"', op
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use limit, check, credit, charge or reset.';
        END IF;

        item_refused[item] := NOT ok;
        item_values[item] := CASE
          WHEN NOT ok THEN balance
          WHEN parts > 1 THEN after + beyond_rows[in_hand]
          WHEN abs(after) <= tolerance THEN 0
          ELSE after
        END;
        IF grouped THEN
          undo_balance[item] := CASE WHEN parts > 1 THEN balance + beyond_rows[in_hand] ELSE balance END;
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
        IF parts > 1 THEN
          spare_balances[in_hand] := after;
          asked_counts[in_hand] := coalesce(asked_counts[in_hand], 0) + count * times;
        END IF;
      END LOOP;

      IF grouped AND (refused OR op = 'check') THEN
        in_hand := NULL;
        touched := false;
        FOR item IN REVERSE last_item .. first_item LOOP
          b := item_buckets[item];
          rows[b] := undo_rows[item];
          row_present[b] := undo_present[item];
          is_gathered[b] := undo_gathered[item];
          IF refused THEN
            item_values[item] := undo_balance[item];
          END IF;
        END LOOP;
      END IF;
      call_admitted[nth] := CASE WHEN times = 1 AND NOT refused THEN 1 ELSE admitted + (NOT refused)::integer END;
      IF grouped THEN
        FOR item IN first_item .. last_item LOOP
          IF (op = 'limit' AND NOT refused) OR op = 'charge' THEN
            row_changed[item_buckets[item]] := true;
            pending := true;
          END IF;
        END LOOP;
      END IF;
    END LOOP;
    --@include put_away
    IF last_item <> items THEN
      RAISE EXCEPTION 'the calls have % items, and % are listed', last_item, items
        USING ERRCODE = 'invalid_parameter_value', HINT = 'The call_sizes add up to the items.';
    END IF;

    IF widened THEN -- Once more, with all rows of the buckets for which two were too few.
      IF again OR hurried THEN
        --@include out_of_order
      END IF;
      hurried := locking; -- The locks in hand are not in order for that.
      pending := NULL;
      row_changed := NULL;
      in_hand := NULL;
      last_item := 0;
      CONTINUE;
    END IF;

    IF pending AND locking IS NOT TRUE AND locks_first THEN
      locking := true;
      hurried := holds_rows;
      pending := NULL;
      row_changed := NULL;
      in_hand := NULL;
      last_item := 0;
      CONTINUE;
    END IF;

    --@include write

    EXIT WHEN locking OR again OR pending IS NOT TRUE OR call_ats IS NOT NULL
      OR public.rate_limit_clock() - clock <= 1000 + 50 * (buckets + coalesce(cardinality(shares), 0));
    -- Somebody had a row, and let go of it unchanged. What was decided as of a moment before the wait is decided once
    -- more, on the same rows, which nobody else can change now.
    again := true;
    row_exists := row_present;
    rows := rows_before;
    row_present := present_before;
    to_update := NULL;
    to_insert := NULL;
    to_delete := NULL;
    missed := 0;
    in_hand := NULL;
    last_item := 0;
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

--@ part config: of the limit in hand
kind := limit_kinds[limit_in_hand];
rate := limit_rates[limit_in_hand];
period := limit_periods[limit_in_hand];
capacity := coalesce(limit_capacities[limit_in_hand], rate);
resolution := coalesce(limit_resolutions[limit_in_hand], 1);

--@ part not_valid
RAISE EXCEPTION 'item % names a limit or a bucket that is not listed or not valid', item
  USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate; indices count from 1.';

--@ part widen: the bucket in hand cannot be decided on by two rows of it
looks_at_all[in_hand] := true;
widened := true;
in_hand := NULL;
touched := false;
CONTINUE each_item;

--@ part balance_of_counts: for kinds that keep a balance
IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
  FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
    bucket.value := bucket.value + part;
  END LOOP;
  bucket.value := capacity - bucket.value;
  bucket.earlier_counts := NULL;
END IF;
