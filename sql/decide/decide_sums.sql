-- Gives back and takes the tokens of a batch of calls, from each bucket that covers its sum. It first adds what calls credit to
-- the bucket, and then takes what the others need. If every bucket covers its sum, the order of the calls does not matter, and
-- all are allowed.
-- Calls on a bucket that does not cover its sum are undone, and so are later calls on the other buckets of those calls. The
-- client then lets _decide decide them, in a later transaction. Credits are never undone.
--
--   limit_*         as for _decide, without shards
--   bucket_*        names and keys, sorted by their bytes, each bucket once; the index of each bucket's limit, counted from 1
--                   (NULL: all use the first); the tokens needed from each; and the tokens credited to each (NULL: no credit)
--   item_*          the bucket of each item, and the tokens it needs in total, without credits; NULL: no call has several items
--   call_sizes      the number of items of each call, without credits
--
-- Returns the balance of each bucket afterwards, in the order given; NULL for a bucket that did not cover its sum. If
-- bucket_credits is given, as many balances follow: those after the credit, for the buckets that did not cover their sum.
--
-- Run it only in its own transaction: it locks rows in the order given, but leaves rows that do not cover their sum unlocked,
-- so nothing may be locked after this. One UPDATE reads and writes each row, so that under SERIALIZABLE no read remains that
-- could cause a conflict. If another transaction has changed a row meanwhile, READ COMMITTED evaluates this UPDATE again on
-- the new row, and SERIALIZABLE raises an error (40001).
CREATE OR REPLACE FUNCTION rate_limit._decide_sums(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_resolutions integer[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  bucket_amounts double precision[], bucket_credits double precision[], item_buckets integer[], item_counts double precision[],
  call_sizes integer[]
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
  buckets CONSTANT integer := cardinality(bucket_names);
  now CONSTANT bigint := rate_limit._clock();
  is_late boolean;
  taken integer[];
  balances double precision[];
  covered double precision[]; -- the balances of those of `taken`
  backs double precision[]; -- the tokens that undone calls return to each bucket
  asked record;
BEGIN
  IF item_counts IS NOT NULL AND (0 <= ALL (item_counts) AND 1e13 >= ALL (item_counts)) IS NOT TRUE THEN -- NaN is the largest.
    RAISE EXCEPTION 'invalid_count: a count of the batch is not a number from 0 to 1e13'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one count for each item.';
  END IF;
  -- The balance is at most the capacity, so a credit can be added before the refill as well as after it.
  -- ANY, because with `=` on the first column of the key the planner might scan a small table in index order, and keep that
  -- plan when the table has grown.
  WITH u AS (
    UPDATE rate_limit.rate_limits AS r
    SET
      value = rate_limit._value_after(
        a.kind, r.value + a.credit, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, a.resolution,
        a.amount),
      ts = greatest(now, r.ts),
      idle_at = rate_limit._idle_after(
        a.kind, r.value + a.credit, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, a.resolution,
        a.amount),
      detail = rate_limit._counts_after(
        a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.phase, a.resolution)
    FROM (
      SELECT a.*, coalesce(bucket_credits[a.nth], 0) AS credit
      FROM rate_limit._asked(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
        bucket_limits, bucket_amounts) AS a
    ) AS a
    WHERE (a.amount > 0 OR a.credit > 0) AND r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0 AND r.shards = 1
      AND rate_limit._fits(a.kind, r.detail, a.period, a.phase, a.resolution)
      -- The counts of a sliding window are no balance.
      AND (a.credit = 0 OR rate_limit._is_exact(a.credit, a.capacity) AND a.kind <> 'sliding_window')
      AND rate_limit._left(
        a.kind, r.value + a.credit, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, a.resolution)
        >= a.amount
    RETURNING a.nth, rate_limit._left(
      a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, a.resolution) AS balance
  )
  SELECT array_agg(u.nth ORDER BY u.nth), array_agg(u.balance ORDER BY u.nth) INTO taken, balances FROM u;

  IF coalesce(cardinality(taken), 0) < buckets THEN
    covered := balances;
    balances := array_fill(CAST(NULL AS double precision), ARRAY[buckets]);
    FOR place IN 1 .. coalesce(cardinality(taken), 0) LOOP
      balances[taken[place]] := covered[place];
    END LOOP;
    -- New rows must be locked before existing ones, so insert only if no row is locked yet. Under READ COMMITTED, an UPDATE that
    -- has waited for a row may have locked it without changing it.
    IF taken IS NULL AND NOT EXISTS (
      SELECT
      FROM unnest(bucket_names, bucket_keys) AS u (name, key)
      INNER JOIN rate_limit.rate_limits AS r ON r.name = ANY (ARRAY[u.name]) AND r.key = u.key AND r.shard = 0
    )
    THEN
      balances := rate_limit._take_new(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
        bucket_limits, bucket_amounts, now);
    END IF;
    -- A bucket from which nothing is taken is only read, after all waits: a gate may have been blocked meanwhile.
    IF 0 = ANY (bucket_amounts) THEN
      PERFORM rate_limit._needs_fresh_reads(rate_limit._clock() - now);
      FOR asked IN
        SELECT
          a.nth,
          CASE
            WHEN r.ts IS NULL THEN a.capacity
            WHEN r.shards = 1 AND rate_limit._fits(a.kind, r.detail, a.period, a.phase, a.resolution)
            THEN rate_limit._left(
              a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, a.resolution)
          END AS balance
        FROM rate_limit._asked(
          limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
          bucket_limits, bucket_amounts) AS a
        LEFT JOIN rate_limit.rate_limits AS r ON r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0
        WHERE a.amount = 0 AND coalesce(bucket_credits[a.nth], 0) = 0
      LOOP
        balances[asked.nth] := CASE WHEN asked.balance >= 0 THEN asked.balance END;
      END LOOP;
    END IF;
    IF array_position(balances, NULL) IS NOT NULL THEN
      backs := rate_limit._undone(balances, item_buckets, item_counts, call_sizes);
    END IF;
  END IF;

  -- If the UPDATE was slow, another transaction may have locked a row without changing it. A decision as of a time before that
  -- wait would count the refill since then twice, so it is made again.
  is_late := rate_limit._clock() - now > rate_limit._late_after(buckets);
  IF is_late OR 0 < ANY (backs) THEN
    FOR asked IN
      SELECT *
      FROM rate_limit._asked(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
        bucket_limits, bucket_amounts) AS a
      WHERE balances[a.nth] IS NOT NULL AND a.amount > 0
    LOOP
      balances[asked.nth] := rate_limit._retake(
        asked.name, asked.key, 0, asked.kind, asked.rate, asked.period, asked.capacity, asked.phase, asked.resolution,
        asked.amount, greatest(asked.amount - coalesce(backs[asked.nth], 0), 0), CASE WHEN is_late THEN rate_limit._clock() END);
    END LOOP;
  END IF;
  IF bucket_credits IS NOT NULL THEN
    balances := balances || rate_limit._credit_uncovered(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
      bucket_limits, bucket_credits, balances);
  END IF;
  RETURN balances;
END
$function$;

-- Inserts the rows of the buckets of a batch, none of which has one, without what is needed from them. Returns the balances; NULL
-- for a bucket from which nothing is needed, and if another transaction has inserted the row since.
CREATE OR REPLACE FUNCTION rate_limit._take_new(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_resolutions integer[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  bucket_amounts double precision[], now bigint
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  balances double precision[] := array_fill(CAST(NULL AS double precision), ARRAY[cardinality(bucket_names)]);
  nths integer[];
  inserted_balances double precision[];
BEGIN
  WITH new_rows AS (
    SELECT
      a.nth, a.name, a.key,
      rate_limit._value_after(
        a.kind, a.value, now, a.detail, now, a.rate, a.period, a.capacity, a.phase, a.resolution, a.amount) AS value,
      rate_limit._idle_after(
        a.kind, a.value, now, a.detail, now, a.rate, a.period, a.capacity, a.phase, a.resolution, a.amount) AS idle_at,
      a.detail,
      rate_limit._left(
        a.kind, a.value, now, a.detail, now, a.rate, a.period, a.capacity, a.phase, a.resolution) - a.amount AS remaining
    FROM (
      SELECT
        a.*, CASE WHEN a.kind = 'sliding_window' THEN 0 ELSE a.capacity END AS value,
        CASE
          WHEN a.kind = 'sliding_window' THEN rate_limit._sliding_window_grid(a.rate, a.period, a.phase, a.resolution)
        END AS detail
      FROM rate_limit._asked(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
        bucket_limits, bucket_amounts) AS a
      OFFSET 0
    ) AS a
    WHERE a.amount > 0
  ),
  inserted AS (
    INSERT INTO rate_limit.rate_limits AS r (name, key, value, ts, idle_at, detail)
    SELECT n.name, n.key, n.value, now, n.idle_at, n.detail
    FROM new_rows AS n
    ORDER BY n.nth
    ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING
    RETURNING r.name, r.key
  )
  SELECT array_agg(n.nth ORDER BY n.nth), array_agg(n.remaining ORDER BY n.nth)
  INTO nths, inserted_balances
  FROM new_rows AS n
  WHERE (SELECT count(*) FROM inserted) = (SELECT count(*) FROM new_rows)
    OR EXISTS (
      SELECT
      FROM inserted AS i
      WHERE i.name = n.name AND i.key = n.key
    );
  FOR place IN 1 .. coalesce(cardinality(nths), 0) LOOP
    balances[nths[place]] := inserted_balances[place];
  END LOOP;
  RETURN balances;
END
$function$;

-- Returns the tokens that the undone calls of a batch return to each bucket. They are the calls on a bucket that did not cover
-- its sum, which has no balance, and later calls on the other buckets of those calls.
CREATE OR REPLACE FUNCTION rate_limit._undone(
  balances double precision[], item_buckets integer[], item_counts double precision[], call_sizes integer[]
) RETURNS double precision[] LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  backs double precision[] := array_fill(0::double precision, ARRAY[cardinality(balances)]);
  open_buckets integer[] := ARRAY(SELECT nth FROM generate_series(1, cardinality(balances)) AS nth WHERE balances[nth] IS NULL);
  last_item integer := 0;
  places integer[]; -- the buckets of a call
BEGIN
  FOR nth IN 1 .. coalesce(cardinality(call_sizes), 0) LOOP
    places := item_buckets[last_item + 1 : last_item + call_sizes[nth]];
    IF places && open_buckets THEN
      open_buckets := open_buckets || places;
      FOR place IN 1 .. call_sizes[nth] LOOP
        backs[places[place]] := backs[places[place]] + item_counts[last_item + place];
      END LOOP;
    END IF;
    last_item := last_item + call_sizes[nth];
  END LOOP;
  RETURN backs;
END
$function$;

-- Credits the buckets of a batch that did not cover their sum, which have no balance. Returns their balances after the credit.
CREATE OR REPLACE FUNCTION rate_limit._credit_uncovered(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_resolutions integer[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  bucket_credits double precision[], balances double precision[]
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  credited double precision[] := array_fill(CAST(NULL AS double precision), ARRAY[cardinality(bucket_names)]);
  uncovered record;
  item_values double precision[];
BEGIN
  SELECT
    array_agg(nth ORDER BY nth) AS nths, array_agg(bucket_names[nth] ORDER BY nth) AS names,
    array_agg(bucket_keys[nth] ORDER BY nth) AS keys, array_agg(coalesce(bucket_limits[nth], 1) ORDER BY nth) AS limits,
    array_agg(bucket_credits[nth] ORDER BY nth) AS credits, array_agg('credit'::text) AS ops
  INTO uncovered
  FROM generate_series(1, cardinality(bucket_names)) AS nth
  WHERE bucket_credits[nth] IS NOT NULL AND balances[nth] IS NULL;
  IF uncovered.nths IS NULL THEN
    RETURN credited;
  END IF;
  -- Rows that come later in the order are locked already, so this must not wait for a lock: it could deadlock.
  IF true = ANY (rate_limit._held(uncovered.names, uncovered.keys)) THEN
    RAISE EXCEPTION 'another transaction has locked a bucket that is short'
      USING ERRCODE = 'lock_not_available', HINT = 'Retry the transaction without the calls on this bucket.';
  END IF;
  SELECT d.item_values
  INTO item_values
  FROM rate_limit._decide(
    limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts, limit_resolutions, NULL, uncovered.names,
    uncovered.keys, NULL, uncovered.limits, uncovered.credits, uncovered.ops, NULL, NULL, NULL, NULL) AS d;
  FOR place IN 1 .. cardinality(item_values) LOOP
    credited[uncovered.nths[place]] := item_values[place];
  END LOOP;
  RETURN credited;
END
$function$;
