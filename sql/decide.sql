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
-- Exactness. All statements take rows in one order, at every isolation level, so that two of them do not wait for each other in
-- a circle: first the rows that are not there yet, then those that are, each by (name, key, shard) in bytes. A statement that
-- has locked existing rows inserts no more, but the other rows of a bucket whose row of shard 0 it has. The first UPDATE
-- therefore stops before the first row that the rest of the function may have to write. Where the order cannot be kept,
-- nothing is waited for.
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
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
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
  missing_ones boolean;
  holds_some boolean; -- locks on other rows
  again boolean; -- the second pass of the others, after a wait
  pending boolean; -- something is to be written
  clock bigint;

  -- Plain calls, which the UPDATE decides.
  settled integer[];
  settled_values double precision[];
  settled_waits bigint[];
  is_settled boolean[];
  is_done boolean; -- all of them are
  settled_at bigint; -- the first of their times
  short_items integer[]; -- items of buckets that have too little
  left_out integer[] := '{}'; -- items that the UPDATE leaves alone
  first_short_name text; -- of the first bucket in the global order that the UPDATE has to leave
  first_short_key text;
  first_left_name text;
  first_left_key text;
  has_new boolean; -- rows that are not there, and not put there at once
  new_buckets integer[]; -- buckets without a row
  new_capacities double precision[];
  new_amounts double precision[];
  new_refills bigint[]; -- microseconds until they are full again
  was_put integer[]; -- those that have got one
  put_values double precision[];

  -- The buckets.
  rows public.rate_limits[];
  row_exists boolean[]; -- there is a row in the table
  row_present boolean[]; -- there is to be one
  row_changed boolean[];
  rows_before public.rate_limits[]; -- as they were read
  present_before boolean[];
  to_update public.rate_limits[];
  to_insert public.rate_limits[];
  to_insert_last public.rate_limits[]; -- of shards from 1 on
  to_delete public.rate_limits[];
  written bigint;
  missed bigint := 0;

  --@include declare_shards

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

  -- A clock of the caller's could lock a key for a century, or fill a bucket before its time. The caller is the role of SET ROLE, or
  -- the one that has logged in; within this function current_user is the owner.
  IF call_ats IS NOT NULL AND ('check' = ALL (call_ops)) IS NOT TRUE -- which writes nothing
    AND NOT pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user)::name, current_user, 'MEMBER')
  THEN
    RAISE EXCEPTION 'a clock was given, which only the owner of the functions may set'
      USING ERRCODE = 'insufficient_privilege', HINT = 'Leave `at` out for the database''s clock.';
  END IF;

  locks_first := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
  --@include plain

  IF is_done IS NOT TRUE THEN
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
  END IF;

  last_item := 0;
  LOOP
    EXIT WHEN is_done;
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
      --@include call
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
    to_insert_last := NULL;
    to_delete := NULL;
    missed := 0;
    in_hand := NULL;
    last_item := 0;
  END LOOP;
  --@include settled_now
END
$function$;
COMMENT ON FUNCTION public.rate_limit_decide IS 'Decides a batch of calls on any number of buckets; called by the client.';

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
