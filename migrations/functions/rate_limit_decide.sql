-- rate_limit_decide(text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], integer[], text[], text[], integer[], integer[], double precision[], text[], boolean[], integer[], integer[], bigint[], boolean)
-- SHA-256: d3369a235d07662ae5ff42beac1cdcc94c71d82b7358bc3eb81afe72f824c723

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
  is_removed boolean[]; -- all of its rows were removed by an earlier pass
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
  opened bigint; -- the start of the window that holds `now`
  sub_interval bigint; -- the number, on the grid, of the sub-interval that holds `now`
  gone double precision; -- the fraction of it that is gone by

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
  -- Plain calls: one token bucket each, the database's clock. The UPDATE that takes the tokens decides; it leaves alone what
  -- has too few of them, what has no row, and what is not valid: the rest of the function looks at that. Reservations go the
  -- same way, if they are of one row.
  IF item_buckets IS NULL AND call_ops IS NULL AND call_ats IS NULL
    AND (call_reserves IS NULL OR (call_sizes IS NULL AND call_times IS NULL AND limit_shards IS NULL))
  THEN
    now := public.rate_limit_clock();
    IF limit_shards IS NOT NULL THEN
      -- None under READ COMMITTED: an UPDATE that waits and then finds too little keeps the row locked, and the rows of the other
      -- shards could not be waited for without a circle. For the same reason the UPDATE stops before the first bucket that has to
      -- be gathered: its rows are waited for before those of later ones.
      SELECT
        array_agg(c.shard ORDER BY c.nth),
        array_agg(c.of_both ORDER BY c.nth),
        (array_agg(c.name ORDER BY c.name COLLATE "C", c.key COLLATE "C") FILTER (WHERE c.is_short))[1],
        (array_agg(c.key ORDER BY c.name COLLATE "C", c.key COLLATE "C") FILTER (WHERE c.is_short))[1]
      INTO chosen_shards, pair_balances, first_short_name, first_short_key
      FROM (
        SELECT a.nth, a.name, a.key, p.*, a.shards > 1 AND p.balance >= a.needed IS NOT TRUE AS is_short
        FROM (
          SELECT
            a.*,
            -- One of the `shards` rows, and how much further another one is.
            floor(random() * shards)::integer AS first,
            1 + floor(random() * (shards - 1))::integer AS step
          FROM
            public.rate_limit_asked(
              limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
              item_limits, item_counts, call_reserves, call_times, chosen_shards, first_short_name, first_short_key)
            AS a
          OFFSET 0
        ) AS a
        LEFT JOIN LATERAL (
          -- Of the two rows drawn, `first` and `step` further, one that is free if it has enough for `amount`, or else the fuller one;
          -- and what both hold.
          SELECT f.shard, f.balance, sum(f.balance) OVER () AS of_both
          FROM (
            SELECT
              bucket.shard,
              bucket.in_use,
              least(
                public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period)
                , capacity) AS balance
            FROM unnest(ARRAY[first, (first + step) % a.shards]) AS d (shard)
            CROSS JOIN LATERAL (
              SELECT (s.bucket).*, s.in_use
              FROM public.rate_limit_rows(a.name, a.key) AS s
              WHERE s.shard = d.shard
              LIMIT 1
            ) AS bucket
            WHERE bucket.shards = a.shards AND bucket.earlier_counts IS NULL
          ) AS f
          ORDER BY f.balance >= amount DESC, f.in_use, f.balance DESC
          LIMIT 1
        ) AS p ON a.shards > 1 AND a.is_plain AND NOT locks_first
      ) AS c;
    END IF;
    IF buckets > 1 THEN
      -- Rows are taken in one order: new rows first, then existing ones. So where a new one is not a single plain call on a token
      -- bucket, all is left to the loop below, which keeps to it. And the UPDATE stops before the first row that the
      -- loop may have to write. (It may not have to where the call is refused, which takes no lock.)
      SELECT
        coalesce(bool_or(l.is_new AND NOT l.fits), false),
        coalesce(array_agg(l.nth) FILTER (WHERE l.is_new), '{}'),
        array_agg(l.capacity) FILTER (WHERE l.is_new),
        array_agg(l.amount) FILTER (WHERE l.is_new),
        array_agg(l.refill) FILTER (WHERE l.is_new),
        array_agg(l.nth) FILTER (WHERE NOT l.has_enough),
        (array_agg(l.name) FILTER (WHERE l.is_left))[1],
        (array_agg(l.key) FILTER (WHERE l.is_left))[1]
      INTO has_new, new_buckets, new_capacities, new_amounts, new_refills, short_items, first_left_name, first_left_key
      FROM (
        SELECT
          a.nth,
          a.name,
          a.key,
          a.capacity,
          a.amount,
          CASE WHEN a.is_plain THEN ceil(a.amount * a.period / a.rate)::bigint END AS refill,
          r.found IS NULL AS is_new,
          coalesce(
            a.is_plain AND a.shard IS NOT NULL AND r.shards = a.shards AND r.earlier_counts IS NULL AND r.flow >= a.needed, false
          ) AS has_enough,
          coalesce(a.is_plain AND a.shards = 1 AND call_sizes IS NULL AND a.amount <= a.capacity + a.tolerance, false) AS fits,
          r.found AND NOT coalesce(
            CASE
              WHEN NOT a.is_plain OR r.earlier_counts IS NOT NULL OR r.shards <> a.shards THEN false
              WHEN a.shards > 1 OR r.flow >= a.needed THEN true
              -- Refused for the next second at least: the loop may look a little later.
              WHEN a.reserves OR a.times = 1 THEN r.flow + 1000000 * a.rate / a.period < a.needed
              ELSE r.flow + 1000000 * a.rate / a.period < a.amount / a.times - a.tolerance
            END,
            false) AS is_left
        FROM
          public.rate_limit_asked(
            limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
            item_limits, item_counts, call_reserves, call_times, chosen_shards, first_short_name, first_short_key)
          AS a
        LEFT JOIN LATERAL (
          SELECT
            true AS found,
            bucket.shards,
            bucket.earlier_counts,
            public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period)
            AS flow
          FROM public.rate_limits AS bucket
          WHERE bucket.name = a.name AND bucket.key = a.key AND bucket.shard = coalesce(a.shard, 0)
          LIMIT 1
        ) AS r ON true
        ORDER BY a.name COLLATE "C", a.key COLLATE "C"
      ) AS l;
      IF (first_short_name COLLATE "C", first_short_key COLLATE "C") < (first_left_name, first_left_key) IS NOT TRUE
        AND first_left_name IS NOT NULL
      THEN
        first_short_name := first_left_name;
        first_short_key := first_left_key;
      END IF;
    END IF;
    IF has_new OR (call_sizes IS NOT NULL AND (call_times IS NOT NULL OR locks_first)) THEN
      NULL; -- New rows are put there before any other is taken. A group is taken as a whole or not at all, by one snapshot.
    ELSE
      IF call_sizes IS NULL THEN
        FOR i IN 1 .. coalesce(cardinality(new_buckets), 0) LOOP
          INSERT INTO public.rate_limits (name, key, value, ts, idle_at)
          VALUES (
            bucket_names[new_buckets[i]], bucket_keys[new_buckets[i]], new_capacities[i] - new_amounts[i], now,
            now + new_refills[i])
          ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
          IF FOUND THEN
            was_put := was_put || new_buckets[i];
            left_out := was_put;
            put_values := put_values || (new_capacities[i] - new_amounts[i]);
          END IF;
        END LOOP;
      ELSE
        FOR nth IN 1 .. calls LOOP
          first_item := last_item + 1;
          last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 1);
          refused := false;
          FOR i IN first_item .. last_item LOOP
            refused := refused OR coalesce(
              i = ANY (short_items)
              OR (bucket_names[i] COLLATE "C", bucket_keys[i] COLLATE "C") >= (first_short_name, first_short_key),
              false);
          END LOOP;
          IF refused THEN
            FOR i IN first_item .. last_item LOOP
              left_out := left_out || i;
            END LOOP;
          END IF;
        END LOOP;
      END IF;
      -- ANY, because `=` on the first column of the key would let the planner read a whole small table in its order, and keep
      -- to that when the table has grown.
      WITH u AS (
        UPDATE public.rate_limits AS bucket
        SET
          (value, ts, idle_at) = (
            SELECT t.* FROM public.rate_limit_taken(bucket.value, bucket.ts, now, amount, rate, period, capacity) AS t)
        FROM
          public.rate_limit_asked(
            limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
            item_limits, item_counts, call_reserves, call_times, chosen_shards, first_short_name, first_short_key)
          AS a
        WHERE bucket.name = ANY (ARRAY[a.name]) AND bucket.key = a.key AND bucket.shard = a.shard
          AND bucket.shards = a.shards AND bucket.earlier_counts IS NULL AND is_plain AND nth <> ALL (left_out)
          AND public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period) >= needed
        RETURNING
          nth,
          public.rate_limit_left_over(bucket.value, tolerance, a.shards, amount, pair_balances[nth]) AS left_over,
          public.rate_limit_reserved_wait(bucket.value, bucket.ts - public.rate_limit_clock(), amount, rate, period, capacity) AS wait,
          bucket.ts
      )
      SELECT array_agg(nth), array_agg(left_over), array_agg(wait), min(ts)
      INTO settled, settled_values, settled_waits, settled_at
      FROM u;
    END IF;
    IF was_put IS NOT NULL THEN
      settled := settled || was_put;
      settled_values := settled_values || put_values;
      settled_waits := settled_waits || array_fill(NULL::bigint, ARRAY[cardinality(was_put)]);
      settled_at := least(settled_at, now);
    END IF;
    FOR i IN 1 .. coalesce(cardinality(settled), 0) LOOP
      is_settled[settled[i]] := true;
    END LOOP;
    is_done := cardinality(settled) = buckets;
    IF limit_shards IS NOT NULL THEN -- The loop below chooses for the others.
      chosen_shards := ARRAY(
        SELECT CASE WHEN is_settled[n] THEN chosen_shards[n] END FROM generate_series(1, buckets) AS n ORDER BY n
      );
    END IF;
  END IF;

  IF is_done IS NOT TRUE THEN
    IF limit_shards IS NOT NULL THEN
      -- How many shards each bucket is to have, and two of them.
      FOR item IN 1 .. items LOOP
        b := CASE WHEN item_buckets IS NULL THEN item ELSE item_buckets[item] END;
        parts := limit_shards[CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[item] END];
        IF NOT coalesce(b BETWEEN 1 AND buckets AND coalesce(parts, 1) BETWEEN 1 AND 1000, false) THEN
          RAISE EXCEPTION 'item % names a limit or a bucket that is not listed or not valid', item
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate; indices count from 1.';
        END IF;
        CONTINUE WHEN coalesce(parts, 1) = 1;
        bucket_shards[b] := parts;
        first_shards[b] := floor(random() * parts);
        second_shards[b] := (first_shards[b] + 1 + floor(random() * (parts - 1))::integer) % parts;
      END LOOP;
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
      -- Reads the rows, and locks them if that is to be; those of sharded buckets apart.
      IF buckets = 1 THEN
        SELECT r.*
        INTO bucket
        FROM public.rate_limits AS r
        WHERE r.name = bucket_names[1] AND r.key = bucket_keys[1] AND r.shard = 0
          AND (bucket_shards[1] IS NULL OR looks_at_all[1]);
        row_present[1] := FOUND;
        rows[1] := bucket;
        sorted := ARRAY[1];
      ELSE
        SELECT
          array_agg(a.nth ORDER BY a.name COLLATE "C", a.key COLLATE "C"),
          array_agg(r.whole ORDER BY a.nth),
          array_agg(coalesce(r.there, false) ORDER BY a.nth)
        INTO sorted, rows, row_present
        FROM unnest((SELECT bucket_names), bucket_keys) WITH ORDINALITY AS a (name, key, nth) -- Sub-select: as above.
        LEFT JOIN LATERAL (
          SELECT t AS whole, true AS there
          FROM public.rate_limits AS t
          WHERE t.name = a.name AND t.key = a.key AND t.shard = 0 AND is_settled[a.nth] IS NOT TRUE
            AND (bucket_shards[a.nth] IS NULL OR looks_at_all[a.nth])
          LIMIT 1
        ) AS r ON true;
        FOR i IN 2 .. buckets LOOP
          IF bucket_keys[sorted[i]] = bucket_keys[sorted[i - 1]] AND bucket_names[sorted[i]] = bucket_names[sorted[i - 1]] THEN
            RAISE EXCEPTION 'a bucket of the limit "%" is listed twice', bucket_names[sorted[i]]
              USING ERRCODE = 'invalid_parameter_value', HINT = 'List a bucket once; several items may name it.';
          END IF;
        END LOOP;
      END IF;
      row_exists := row_present;
      IF is_anchored IS NOT NULL THEN -- What an earlier pass put there says nothing.
        FOR i IN 1 .. buckets LOOP
          row_present[i] := row_present[i] AND is_anchored[i] IS NOT TRUE;
        END LOOP;
      END IF;

      IF locking THEN
        -- In the order in which others write: the rows that are not there, then those that are. The former cannot be locked: put
        -- one there, or wait for the transaction that does.
        holds_some := settled IS NOT NULL;
        FOREACH missing_ones IN ARRAY ARRAY[true, false] LOOP
          <<each_bucket>>
          FOR i IN 1 .. buckets LOOP
            b := sorted[i];
            IF is_settled[b] OR is_anchored[b] THEN
              CONTINUE;
            ELSIF chosen_shards[b] IS NOT NULL AND looks_at_all[b] IS NOT TRUE THEN
              CONTINUE WHEN missing_ones;
              -- Whoever has it and then finds too little in it cannot wait for the others without a circle. So it is waited for only if
              -- it held many times what is asked, and taken at all only if those who were quicker cannot have emptied it.
              bucket := NULL;
              IF spare_balances[b] >= 4 * asked_counts[b] THEN
                SELECT r.*
                INTO bucket
                FROM public.rate_limits AS r
                WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = chosen_shards[b]
                FOR NO KEY UPDATE SKIP LOCKED;
                IF NOT FOUND AND spare_balances[b] >= 32 * asked_counts[b] AND hurried IS NOT TRUE THEN
                  SELECT r.*
                  INTO bucket
                  FROM public.rate_limits AS r
                  WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = chosen_shards[b]
                  FOR NO KEY UPDATE;
                END IF;
              END IF;
              IF bucket.shard IS NOT NULL THEN
                rows[b] := bucket;
                row_present[b] := true;
                row_exists[b] := true;
                is_gathered[b] := true;
                holds_some := true;
                CONTINUE;
              END IF;
              looks_at_all[b] := true;
            ELSE
              CONTINUE WHEN row_exists[b] = missing_ones;
            END IF;
            IF hurried THEN
              nth_shard := 0;
              LOOP
                SELECT r.*
                INTO bucket
                FROM public.rate_limits AS r
                WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = nth_shard
                FOR NO KEY UPDATE SKIP LOCKED;
                IF NOT FOUND THEN
                  -- A row that cannot be waited for: it comes before those that are held, in the order in which all take them.
                  RAISE EXCEPTION 'could not serialize access to a bucket'
                    USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
                END IF;
                rows[b] := bucket;
                looks_at_all[b] := looks_at_all[b] OR bucket.shards <> coalesce(bucket_shards[b], 1);
                nth_shard := nth_shard + 1;
                EXIT WHEN looks_at_all[b] IS NOT TRUE OR nth_shard >= bucket.shards;
              END LOOP;
              row_exists[b] := true;
              row_present[b] := true;
              CONTINUE;
            END IF;
            LOOP
              IF NOT row_exists[b] THEN
                INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at)
                VALUES (bucket_names[b], bucket_keys[b], 0, coalesce(bucket_shards[b], 1), 0, 0, 0)
                ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
                is_anchored[b] := FOUND;
                holds_some := holds_some OR FOUND;
                row_exists[b] := true; -- Or another transaction has put it there since: it is locked in its turn.
                CONTINUE each_bucket WHEN missing_ones OR is_anchored[b];
              END IF;
              SELECT r.*
              INTO bucket
              FROM public.rate_limits AS r
              WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
              FOR NO KEY UPDATE;
              rows[b] := bucket;
              row_exists[b] := FOUND;
              row_present[b] := FOUND;
              EXIT WHEN FOUND;
              IF holds_some THEN -- It has gone since it was read, and new rows come before those that are held.
                -- A row that cannot be waited for: it comes before those that are held, in the order in which all take them.
                RAISE EXCEPTION 'could not serialize access to a bucket'
                  USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
              END IF;
            END LOOP;
            holds_some := true;
            IF row_exists[b] AND (looks_at_all[b] OR bucket.shards <> coalesce(bucket_shards[b], 1)) THEN
              looks_at_all[b] := true;
              FOR nth_shard IN 1 .. greatest(bucket.shards, bucket_shards[b], 1) - 1 LOOP
                PERFORM
                FROM public.rate_limits AS r
                WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = nth_shard
                FOR NO KEY UPDATE;
              END LOOP;
            END IF;
          END LOOP;
        END LOOP;
      END IF;

      shares := NULL;
      share_counts := NULL;
      IF bucket_shards IS NOT NULL OR looks_at_all IS NOT NULL THEN
        FOR i IN 1 .. buckets LOOP
          b := sorted[i];
          IF is_settled[b] THEN
            CONTINUE;
          ELSIF looks_at_all[b] THEN
            SELECT array_agg(t.whole ORDER BY t.shard)
            INTO rows_found
            FROM generate_series(0, greatest(bucket_shards[b], 1, (
              SELECT r.shards FROM public.rate_limits AS r WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
            )) - 1) AS s (shard)
            CROSS JOIN LATERAL (
              SELECT r AS whole, r.shard
              FROM public.rate_limits AS r
              WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = s.shard
              LIMIT 1
            ) AS t
            WHERE s.shard > 0 OR is_anchored[b] IS NOT TRUE;
            first_shares[b] := coalesce(cardinality(shares), 0) + 1;
            share_counts[b] := coalesce(cardinality(rows_found), 0);
            shares := shares || rows_found;
            row_present[b] := share_counts[b] > 0;
          ELSIF bucket_shards[b] > 1 AND locking IS NOT TRUE THEN
            SELECT array_agg(t.bucket ORDER BY t.in_use), bool_or(t.in_use) AND NOT bool_and(t.in_use)
            INTO rows_found, ok
            FROM unnest(ARRAY[first_shards[b], second_shards[b]]) AS d (shard)
            CROSS JOIN LATERAL (
              SELECT s.bucket, s.in_use
              FROM public.rate_limit_rows(bucket_names[b], bucket_keys[b]) AS s
              WHERE s.shard = d.shard
              LIMIT 1
            ) AS t;
            prefers_first[b] := ok;
            rows[b] := rows_found[1];
            others[b] := rows_found[2];
            row_present[b] := (rows[b]).shard IS NOT NULL;
            row_exists[b] := row_present[b];
          END IF;
        END LOOP;
      END IF;
    END IF;
    rows_before := rows;
    present_before := row_present;
    asked_counts := NULL;

    -- After the locks: a waiter must not decide by the time at which it began to wait.
    clock := public.rate_limit_clock();

    -- Decide.
    FOR nth IN 1 .. calls LOOP
      -- Decides the nth call.
      times := CASE WHEN call_times IS NULL THEN 1 ELSE call_times[nth] END;
      first_item := last_item + 1;
      last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 1);
      IF is_settled[first_item] THEN
        call_admitted[nth] := times;
        IF call_reserves IS NULL THEN
          call_waits[nth] := NULL;
        END IF;
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
                    IF bucket.earlier_counts[i + 3] <> 0 THEN
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
                        IF bucket.earlier_counts[i + 3] <> 0 THEN
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
            -- Takes the bucket up and brings it to the moment.
            in_hand := item_buckets[item];
            limit_in_hand := item_limits[item];
            moment := at;
            kind := limit_kinds[limit_in_hand];
            rate := limit_rates[limit_in_hand];
            period := limit_periods[limit_in_hand];
            capacity := coalesce(limit_capacities[limit_in_hand], rate);
            resolution := coalesce(limit_resolutions[limit_in_hand], 1);
            -- What would spoil a row is caught here, whoever calls; which option suits which kind, by those who do.
            IF NOT coalesce(
              rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000
                AND capacity BETWEEN 0 AND 1e100 AND coalesce(limit_max_reserved[limit_in_hand] BETWEEN 0 AND 1e100, true)
                AND resolution BETWEEN 1 AND 1000 AND coalesce(limit_shards[limit_in_hand], 1) BETWEEN 1 AND 1000
                AND bucket_names[in_hand] IS NOT NULL AND bucket_keys[in_hand] IS NOT NULL,
              false)
            THEN
              RAISE EXCEPTION 'item % names a limit or a bucket that is not listed or not valid', item
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate; indices count from 1.';
            END IF;
            present := row_present[in_hand];
            bucket := rows[in_hand];
            now := CASE WHEN present THEN greatest(moment, bucket.ts) ELSE moment END;
            looks := 1;
            parts := 1;
            pairs := false;
            gathers := false;
            IF bucket_shards IS NOT NULL OR looks_at_all IS NOT NULL OR bucket.shards <> 1 THEN
              IF share_counts[in_hand] IS NULL THEN
                IF bucket_shards[in_hand] > 1 THEN -- At the two drawn, or at the one chosen of them.
                  parts := bucket_shards[in_hand];
                  pairs := is_gathered[in_hand] IS NOT TRUE;
                  IF NOT coalesce(
                    present AND bucket.shards = parts AND limit_shards[limit_in_hand] = parts
                      AND (op = 'limit' OR op = 'charge' OR (op = 'check' AND count > 0))
                      AND (NOT pairs OR (others[in_hand]).shards = parts),
                    false)
                  THEN
                    looks_at_all[in_hand] := true;
                    widened := true;
                    in_hand := NULL;
                    touched := false;
                    CONTINUE each_item;
                  END IF;
                  IF pairs THEN
                    looks := 2;
                    now := greatest(now, (others[in_hand]).ts);
                  END IF;
                ELSIF bucket.shards <> 1 THEN
                  looks_at_all[in_hand] := true;
                  widened := true;
                  in_hand := NULL;
                  touched := false;
                  CONTINUE each_item;
                END IF;
              ELSIF share_counts[in_hand] > 0 AND is_gathered[in_hand] IS NOT TRUE THEN -- At all.
                gathers := true;
                looks := share_counts[in_hand];
                parts := (shares[first_shares[in_hand]]).shards;
                FOR i IN 1 .. looks LOOP
                  now := greatest(now, (shares[first_shares[in_hand] + i - 1]).ts);
                END LOOP;
                may_drain[in_hand] := looks = parts AND looks = coalesce(bucket_shards[in_hand], 1);
              END IF;
              rate := rate / parts;
              capacity := capacity / parts;
            END IF;
            FOR nth_look IN 1 .. looks LOOP
              IF parts > 1 OR gathers THEN
                IF gathers THEN
                  bucket := shares[first_shares[in_hand] + nth_look - 1];
                ELSIF nth_look = 2 THEN
                  bucket := others[in_hand];
                END IF;
                header := bucket.earlier_counts[1:3];
                lack := CASE WHEN bucket.earlier_counts IS NULL THEN capacity - least(bucket.value, capacity) END;
              ELSIF NOT present THEN
                bucket.name := bucket_names[in_hand];
                bucket.key := bucket_keys[in_hand];
                bucket.shard := 0;
                bucket.shards := coalesce(bucket_shards[in_hand], 1);
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
              balance := NULL;
              IF kind = 'fixed_window' THEN
                DECLARE
                  phase bigint := limit_starts[limit_in_hand];
                  opened_before bigint;
                BEGIN
                  IF phase IS NULL THEN
                    phase := public.rate_limit_phase(bucket_names[in_hand], bucket_keys[in_hand]);
                  END IF;
                  IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
                    FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                      bucket.value := bucket.value + part;
                    END LOOP;
                    bucket.value := capacity - bucket.value;
                    bucket.earlier_counts := NULL;
                  END IF;
                  -- Twice %, because the remainder of a negative number is negative. A phase may be longer than the period.
                  opened := now - ((now - phase % period) % period + period) % period;
                  opened_before := bucket.ts - ((bucket.ts - phase % period) % period + period) % period;
                  inflow := coalesce(rate * ((opened - opened_before) / period), 0);
                  bucket.value := least(bucket.value + inflow, capacity);
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
                  counts double precision[] := bucket.earlier_counts[4:]; -- c[1] to c[n]
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
                  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || counts;
                  gone := (inside * resolution % period)::double precision / period;
                  used := bucket.value + counts[resolution] * (1 - gone);
                  FOR i IN 1 .. resolution - 1 LOOP
                    used := used + counts[i];
                  END LOOP;
                  balance := rate - used;
                END;
              ELSIF kind = 'token_bucket' THEN
                IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
                  FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                    bucket.value := bucket.value + part;
                  END LOOP;
                  bucket.value := capacity - bucket.value;
                  bucket.earlier_counts := NULL;
                END IF;
                inflow := greatest(now - bucket.ts, 0)::double precision * rate / period;
                bucket.value := least(bucket.value + inflow, capacity);
                bucket.ts := now;
                balance := bucket.value;
              END IF;
              IF balance IS NULL THEN
                RAISE EXCEPTION 'item % has a limit of unknown kind', item
                  USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate.';
              END IF;
              IF parts > 1 OR gathers THEN
                IF NOT gathers AND bucket.earlier_counts[1:3] IS DISTINCT FROM header THEN -- Another limit's: it may owe what others do not.
                  looks_at_all[in_hand] := true;
                  widened := true;
                  in_hand := NULL;
                  touched := false;
                  CONTINUE each_item;
                END IF;
                IF pairs THEN
                  IF nth_look = 1 THEN
                    kept := bucket;
                    kept_balance := balance;
                  END IF;
                ELSIF gathers THEN
                  IF bucket.earlier_counts[1:3] IS DISTINCT FROM header OR balance < - (1e-9 + 1e-14 * capacity) THEN
                    may_drain[in_hand] := false;
                  END IF;
                  share_balances[first_shares[in_hand] + nth_look - 1] := balance;
                  look_lacks[nth_look] := coalesce(lack, capacity - balance);
                  look_inflows[nth_look] := CASE WHEN lack IS NULL THEN 0 ELSE inflow END;
                  IF nth_look = 1 THEN
                    kept := bucket;
                    sums := bucket.earlier_counts[4:];
                  ELSE
                    kept.value := kept.value + bucket.value;
                    kept.ts := greatest(kept.ts, bucket.ts);
                    FOR i IN 1 .. coalesce(cardinality(sums), 0) LOOP
                      sums[i] := sums[i] + bucket.earlier_counts[i + 3];
                    END LOOP;
                  END IF;
                END IF;
              END IF;
            END LOOP;
            IF pairs THEN
              IF coalesce(
                kept.shard = chosen_shards[in_hand],
                kept_balance >= balance OR (prefers_first[in_hand] AND kept_balance >= count * times)
              )
              THEN
                beyond_rows[in_hand] := (kept_balance + balance) * parts / 2 - kept_balance;
                bucket := kept;
                balance := kept_balance;
              ELSE
                beyond_rows[in_hand] := (kept_balance + balance) * parts / 2 - balance;
              END IF;
              chosen_shards[in_hand] := bucket.shard;
              rows[in_hand] := bucket;
              is_gathered[in_hand] := true;
            ELSIF gathers THEN
              -- It has more than all of them where one row was full and what flowed in was lost, while others were not: one bucket of
              -- the whole rate would have got it. How much that one lacks: a row that lacks w at a moment s was asked, since any moment
              -- before, for at most w and what flowed into it since then. So, seen from each of these moments, the bucket lacks at most
              --   the sum of this over the rows that were written then or later, less what has flowed into the whole since then,
              -- and it lacks the largest of these differences, or nothing. That is what a queue holds (E. Reich, "On the
              -- integrodifferential equation of Takacs", 1958). All of them shrink at the whole rate.
              kind := limit_kinds[limit_in_hand];
              rate := limit_rates[limit_in_hand];
              period := limit_periods[limit_in_hand];
              capacity := coalesce(limit_capacities[limit_in_hand], rate);
              resolution := coalesce(limit_resolutions[limit_in_hand], 1);
              total := (
                SELECT sum(u.balance)
                FROM unnest(share_balances[first_shares[in_hand] : first_shares[in_hand] + looks - 1]) AS u (balance)
              );
              bucket := kept;
              bucket.shard := 0;
              bucket.shards := coalesce(bucket_shards[in_hand], 1);
              IF sums IS NULL THEN
                SELECT capacity - greatest(max(g.lacks + g.inflow * (g.rows - parts)), 0)
                INTO balance
                FROM (
                  SELECT
                    f.inflow,
                    sum(f.lack - f.inflow) OVER written_since AS lacks,
                    count(*) OVER written_since AS rows
                  FROM (
                    SELECT u.lack, least(u.inflow, sum(u.lack) OVER ()) AS inflow -- More than that makes no difference.
                    FROM unnest(look_lacks[1:looks], look_inflows[1:looks]) AS u (lack, inflow)
                  ) AS f
                  WINDOW written_since AS (ORDER BY f.inflow)
                ) AS g;
                bucket.value := balance;
              ELSE
                balance := total;
                bucket.earlier_counts := bucket.earlier_counts[1:2] || rate || sums;
              END IF;
              may_drain[in_hand] := may_drain[in_hand] AND balance <= total + 1e-9 + 1e-14 * capacity;
              parts := 1;
              rows[in_hand] := bucket;
              is_gathered[in_hand] := true;
              gathered_rows[in_hand] := bucket;
              gathered_limits[in_hand] := limit_in_hand;
              gathered_ats[in_hand] := now;
              gathered_totals[in_hand] := total;
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
                    back := least(rest, counts[i + 3]);
                    counts[i + 3] := counts[i + 3] - back;
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
            IF parts = 1 THEN
              least_balance := - limit_max_reserved[limit_in_hand];
              slack := tolerance + 1e-14 * coalesce(- least_balance, 0);
            END IF;
          END IF;
          IF parts > 1 THEN -- One row can only say yes.
            IF balance - count * times < - tolerance THEN
              looks_at_all[in_hand] := true;
              widened := true;
              in_hand := NULL;
              touched := false;
              CONTINUE each_item;
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
              IF kind = 'fixed_window' THEN
                bucket.value := bucket.value - count;
              ELSIF kind = 'sliding_window' THEN
                bucket.value := bucket.value + count;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := bucket.value - count;
              END IF;
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
            IF kind = 'fixed_window' THEN
              wait := opened - now + greatest(ceil((missing - tolerance) / rate), 1) * period;
            ELSIF kind = 'sliding_window' THEN
              DECLARE
                room CONSTANT double precision := rate - balance - missing; -- what may be used then
                whole double precision := bucket.value; -- what counts whole in the sub-interval looked at
                counts CONSTANT double precision[] := bucket.earlier_counts[4:];
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
          IF parts > 1 AND after < - tolerance THEN
            looks_at_all[in_hand] := true;
            widened := true;
            in_hand := NULL;
            touched := false;
            CONTINUE each_item;
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
                IF bucket.earlier_counts[i + 3] <> 0 THEN
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
    IF last_item <> items THEN
      RAISE EXCEPTION 'the calls have % items, and % are listed', last_item, items
        USING ERRCODE = 'invalid_parameter_value', HINT = 'The call_sizes add up to the items.';
    END IF;

    IF widened THEN -- Once more, with all rows of the buckets for which two were too few.
      IF again OR hurried THEN
        -- A row that cannot be waited for: it comes before those that are held, in the order in which all take them.
        RAISE EXCEPTION 'could not serialize access to a bucket'
          USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
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

    -- Writes what has changed, each in the global order: new rows, those that are there, then those that go.
    FOR i IN 1 .. buckets LOOP
      b := sorted[i];
      IF share_counts[b] IS NOT NULL THEN
        -- The rows of bucket b, which were gathered into one: as they are to be.
        -- Which ones there are now:
        shards_there := CASE
          WHEN is_removed[b] THEN '{}'
          WHEN is_split[b] THEN ARRAY(SELECT generate_series(0, coalesce(bucket_shards[b], 1) - 1))
          ELSE ARRAY(
            SELECT u.shard
            FROM unnest(shares[first_shares[b] : first_shares[b] + share_counts[b] - 1]) AS u
          ) || CASE WHEN is_anchored[b] THEN ARRAY[0] ELSE '{}' END
        END;
        -- and which of these go:
        shards_gone := CASE WHEN NOT row_present[b] THEN shards_there WHEN is_anchored[b] THEN ARRAY[0] ELSE '{}' END;
        is_removed[b] := NOT row_present[b];
        IF row_present[b] AND row_changed[b] THEN
          bucket := rows[b];
          kept := gathered_rows[b];
          total := CASE WHEN bucket.earlier_counts IS NULL THEN kept.value - bucket.value ELSE bucket.value - kept.value END;
          parts := bucket.shards;
          shards_gone := ARRAY(SELECT u.shard FROM unnest(shards_there) AS u (shard) WHERE u.shard >= parts);
          IF may_drain[b] AND is_split[b] IS NOT TRUE AND is_removed[b] IS NOT TRUE
            AND total BETWEEN 0 AND gathered_totals[b]
            AND bucket.ts = kept.ts AND bucket.earlier_counts IS NOT DISTINCT FROM kept.earlier_counts
          THEN
            limit_in_hand := gathered_limits[b];
            kind := limit_kinds[limit_in_hand];
            rate := limit_rates[limit_in_hand];
            period := limit_periods[limit_in_hand];
            capacity := coalesce(limit_capacities[limit_in_hand], rate);
            resolution := coalesce(limit_resolutions[limit_in_hand], 1);
            rate := rate / parts;
            capacity := capacity / parts;
            now := gathered_ats[b];
            in_hand := b;
            drained := NULL;
            FOR nth_share IN
              SELECT first_shares[b] + u.nth - 1
              FROM unnest(share_balances[first_shares[b] : first_shares[b] + parts - 1]) WITH ORDINALITY AS u (balance, nth)
              ORDER BY was_drained[first_shares[b] + u.nth - 1] DESC NULLS LAST, u.balance DESC
            LOOP
              EXIT WHEN total <= 0;
              IF again AND was_drained[nth_share] IS NOT TRUE THEN
                -- A row that cannot be waited for: it comes before those that are held, in the order in which all take them.
                RAISE EXCEPTION 'could not serialize access to a bucket'
                  USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
              END IF;
              was_drained[nth_share] := true;
              count := least(total, greatest(share_balances[nth_share], 0));
              total := total - count;
              bucket := shares[nth_share];
              present := true;
              IF kind = 'fixed_window' THEN
                DECLARE
                  phase bigint := limit_starts[limit_in_hand];
                  opened_before bigint;
                BEGIN
                  IF phase IS NULL THEN
                    phase := public.rate_limit_phase(bucket_names[in_hand], bucket_keys[in_hand]);
                  END IF;
                  IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
                    FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                      bucket.value := bucket.value + part;
                    END LOOP;
                    bucket.value := capacity - bucket.value;
                    bucket.earlier_counts := NULL;
                  END IF;
                  -- Twice %, because the remainder of a negative number is negative. A phase may be longer than the period.
                  opened := now - ((now - phase % period) % period + period) % period;
                  opened_before := bucket.ts - ((bucket.ts - phase % period) % period + period) % period;
                  inflow := coalesce(rate * ((opened - opened_before) / period), 0);
                  bucket.value := least(bucket.value + inflow, capacity);
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
                  counts double precision[] := bucket.earlier_counts[4:]; -- c[1] to c[n]
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
                  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || counts;
                  gone := (inside * resolution % period)::double precision / period;
                  used := bucket.value + counts[resolution] * (1 - gone);
                  FOR i IN 1 .. resolution - 1 LOOP
                    used := used + counts[i];
                  END LOOP;
                  balance := rate - used;
                END;
              ELSIF kind = 'token_bucket' THEN
                IF bucket.earlier_counts IS NOT NULL THEN -- The row was a sliding window's: what it counted is spent.
                  FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                    bucket.value := bucket.value + part;
                  END LOOP;
                  bucket.value := capacity - bucket.value;
                  bucket.earlier_counts := NULL;
                END IF;
                inflow := greatest(now - bucket.ts, 0)::double precision * rate / period;
                bucket.value := least(bucket.value + inflow, capacity);
                bucket.ts := now;
                balance := bucket.value;
              END IF;
              IF kind = 'fixed_window' THEN
                bucket.value := bucket.value - count;
              ELSIF kind = 'sliding_window' THEN
                bucket.value := bucket.value + count;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := bucket.value - count;
              END IF;
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
                      IF bucket.earlier_counts[i + 3] <> 0 THEN
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
              drained := drained || bucket;
            END LOOP;
            to_update := to_update || ARRAY(SELECT u FROM unnest(drained) AS u ORDER BY u.shard);
          ELSE
            IF again AND is_split[b] IS NOT TRUE AND is_removed[b] IS NOT TRUE THEN
              -- A row that cannot be waited for: it comes before those that are held, in the order in which all take them.
              RAISE EXCEPTION 'could not serialize access to a bucket'
                USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
            END IF;
            is_split[b] := true;
            bucket.value := bucket.value / parts;
            IF bucket.earlier_counts IS NOT NULL THEN
              bucket.earlier_counts := bucket.earlier_counts[1:2] || ARRAY(
                SELECT u.count / parts
                FROM unnest(bucket.earlier_counts[3:]) WITH ORDINALITY AS u (count, nth)
                ORDER BY u.nth
              );
            END IF;
            FOR nth_shard IN 0 .. parts - 1 LOOP
              bucket.shard := nth_shard;
              IF nth_shard = ANY (shards_there) THEN
                to_update := to_update || bucket;
              ELSIF nth_shard = 0 THEN
                to_insert := to_insert || bucket;
              ELSE
                to_insert_last := to_insert_last || bucket;
              END IF;
            END LOOP;
          END IF;
        END IF;
        FOREACH nth_shard IN ARRAY shards_gone LOOP
          bucket.name := bucket_names[b];
          bucket.key := bucket_keys[b];
          bucket.shard := nth_shard;
          to_delete := to_delete || bucket;
        END LOOP;
      ELSIF row_present[b] THEN
        IF NOT row_exists[b] THEN
          to_insert := to_insert || rows[b];
        ELSIF row_changed[b] THEN
          to_update := to_update || rows[b];
        END IF;
      ELSIF row_exists[b] THEN -- Reset, or put there only to be locked.
        bucket.name := bucket_names[b];
        bucket.key := bucket_keys[b];
        bucket.shard := 0;
        to_delete := to_delete || bucket;
      END IF;
    END LOOP;
    -- New rows before those that are there: one that is new by the snapshot may be there since, and taken by somebody, for whom
    -- an INSERT waits. Whoever has taken rows that are there waits for more of these only, and so never for who inserts.
    IF to_insert IS NOT NULL THEN
      INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at, earlier_counts)
      SELECT w.name, w.key, w.shard, w.shards, w.value, w.ts, w.idle_at, w.earlier_counts
      FROM unnest((SELECT to_insert)) AS w
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
      GET DIAGNOSTICS written = ROW_COUNT;
      missed := cardinality(to_insert) - written;
    END IF;
    IF to_delete IS NOT NULL AND locking IS NOT TRUE THEN -- Three statements, but the locks in one order.
      FOR bucket IN
        SELECT u.*
        FROM unnest(to_update || to_delete) AS u
        ORDER BY u.name COLLATE "C", u.key COLLATE "C", u.shard
      LOOP
        PERFORM
        FROM public.rate_limits AS r
        WHERE r.name = bucket.name AND r.key = bucket.key AND r.shard = bucket.shard
        FOR UPDATE;
      END LOOP;
    END IF;
    IF to_update IS NOT NULL THEN
      UPDATE public.rate_limits AS r
      SET
        shards = w.shards,
        value = w.value,
        ts = w.ts,
        idle_at = w.idle_at,
        earlier_counts = w.earlier_counts
      FROM unnest((SELECT to_update)) AS w
      WHERE r.name = ANY (ARRAY[w.name]) AND r.key = w.key AND r.shard = w.shard; -- ANY: as above.
      GET DIAGNOSTICS written = ROW_COUNT;
      missed := missed + cardinality(to_update) - written;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(to_delete), 0) LOOP
      bucket := to_delete[i];
      DELETE FROM public.rate_limits AS r
      WHERE r.name = bucket.name AND r.key = bucket.key AND r.shard = bucket.shard;
      missed := missed + CASE WHEN FOUND THEN 0 ELSE 1 END;
    END LOOP;
    -- Only a transaction that has the row of shard 0 puts the others of a bucket there: so they come after it is taken.
    IF to_insert_last IS NOT NULL THEN
      INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at, earlier_counts)
      SELECT w.name, w.key, w.shard, w.shards, w.value, w.ts, w.idle_at, w.earlier_counts
      FROM unnest((SELECT to_insert_last)) AS w
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
      GET DIAGNOSTICS written = ROW_COUNT;
      missed := missed + cardinality(to_insert_last) - written;
    END IF;
    IF missed > 0 THEN -- What was read is no longer what is there.
      RAISE EXCEPTION 'could not serialize access to % of % buckets', missed, buckets
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;

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
  -- The settled calls are answered now.
  -- Some were decided as of a moment before a wait: for a transaction that left its row as it was, or for another row. They are
  -- brought to the time after it, or tokens that flowed in meanwhile could be taken twice: by them, and by the next caller.
  IF settled IS NOT NULL THEN
    now := public.rate_limit_clock();
    clock := now - 1000 - 50 * buckets;
    IF settled_at < clock THEN
      WITH updated AS (
        UPDATE public.rate_limits AS bucket
        SET
          value = least(
            public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period)
            , capacity - amount),
          ts = greatest(now, bucket.ts),
          idle_at = public.rate_limit_full_at(
            least(
              public.rate_limit_flow(bucket.value, bucket.ts, now, rate, period)
              , capacity - amount),
            greatest(now, bucket.ts), rate, period, capacity)
        FROM
          public.rate_limit_asked(
            limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
            item_limits, item_counts, call_reserves, call_times, chosen_shards, first_short_name, first_short_key)
          AS a
        WHERE bucket.name = ANY (ARRAY[a.name]) AND bucket.key = a.key AND bucket.shard = a.shard
          AND nth = ANY (settled) AND bucket.ts < clock
        RETURNING
          nth,
          public.rate_limit_left_over(bucket.value, tolerance, a.shards, amount, pair_balances[nth]) AS left_over,
          public.rate_limit_reserved_wait(bucket.value, bucket.ts - public.rate_limit_clock(), amount, rate, period, capacity) AS wait,
          bucket.ts
      )
      SELECT settled || array_agg(u.nth), settled_values || array_agg(u.left_over), settled_waits || array_agg(u.wait)
      INTO settled, settled_values, settled_waits
      FROM updated AS u;
    END IF;
    FOR i IN 1 .. cardinality(settled) LOOP
      item_values[settled[i]] := settled_values[i];
      IF call_reserves IS NOT NULL THEN
        call_waits[settled[i]] := settled_waits[i];
      END IF;
    END LOOP;
    IF is_done AND call_reserves IS NOT NULL THEN
      call_waits[buckets] := call_waits[buckets]; -- One for each, whatever the order they came in.
    END IF;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_decide IS 'Decides a batch of calls on any number of buckets; called by the client.';
