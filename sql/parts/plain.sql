-- Plain calls: one token bucket each, the database's clock. The UPDATE that takes the tokens decides; it leaves alone what
-- has too few of them, what has no row, and what is not valid: the rest of the function looks at that. Reservations go the
-- same way, if they are of one row.
IF item_buckets IS NULL AND call_ops IS NULL AND call_ats IS NULL
  AND (call_reserves IS NULL OR (call_sizes IS NULL AND call_times IS NULL AND limit_shards IS NULL))
THEN
  now := public.rate_limit_clock();
  IF limit_shards IS NOT NULL THEN
    --@include choose
  END IF;
  IF call_sizes IS NULL THEN
    WITH asked AS (
      --@include asked
    ),
    updated AS (
      --@include update
      --@include returning
    )
    SELECT array_agg(u.nth), array_agg(u.left_over), array_agg(u.wait) INTO settled, settled_values, settled_waits
    FROM updated AS u;
  ELSIF call_times IS NULL AND NOT locks_first THEN
    -- Of a group all or none, by one snapshot: so not under READ COMMITTED.
    FOR nth IN 1 .. calls LOOP
      FOR i IN 1 .. greatest(coalesce(call_sizes[nth], 1), 1) LOOP
        last_item := last_item + 1;
        item_calls[last_item] := nth;
      END LOOP;
    END LOOP;
    WITH asked AS (
      --@include asked
    ),
    updated AS (
      --@include update
        AND item_calls[asked.nth] <> ALL (ARRAY(
          SELECT item_calls[a.nth]
          FROM asked AS a
          LEFT JOIN LATERAL (
            SELECT true AS has_enough
            FROM public.rate_limits AS bucket
            WHERE bucket.name = a.name AND bucket.key = a.key AND bucket.shard = a.shard
              AND bucket.shards = a.shards AND bucket.earlier_counts IS NULL AND a.is_plain
              --@include token_bucket.enough
            LIMIT 1
          ) AS b ON true
          WHERE b.has_enough IS NULL
        ))
      --@include returning
    )
    SELECT array_agg(u.nth), array_agg(u.left_over), array_agg(u.wait) INTO settled, settled_values, settled_waits
    FROM updated AS u;
  END IF;
  -- Somebody had a row: what was decided as of a moment before the wait is brought to the time after it, or tokens that
  -- flowed in while the bucket was full would be had twice.
  IF settled IS NOT NULL AND public.rate_limit_clock() - now > 1000 + 50 * buckets THEN
    now := public.rate_limit_clock();
    WITH updated AS (
      UPDATE public.rate_limits AS bucket
      SET
        --@include token_bucket.kept_waiting
      FROM (
        --@include asked
      ) AS asked
      WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
        AND asked.nth = ANY (settled)
      --@include returning
    )
    SELECT array_agg(u.nth), array_agg(u.left_over), array_agg(u.wait) INTO settled, settled_values, settled_waits
    FROM updated AS u;
  END IF;
  FOR i IN 1 .. coalesce(cardinality(settled), 0) LOOP
    item_values[settled[i]] := settled_values[i];
    is_settled[settled[i]] := true;
    IF call_reserves IS NOT NULL THEN
      call_waits[settled[i]] := settled_waits[i];
    END IF;
  END LOOP;
  IF cardinality(settled) = buckets THEN
    IF call_reserves IS NOT NULL THEN
      call_waits[buckets] := call_waits[buckets]; -- One for each, whatever the order they came in.
    END IF;
    RETURN;
  END IF;
  chosen_shards := NULL;
END IF;

--@ part update: takes what each asks, where there is enough
UPDATE public.rate_limits AS bucket
SET
  --@include token_bucket.taken
FROM asked
-- ANY, because `=` on the first column of the key would let the planner read a whole small table in its order, and keep to
-- that when the table has grown.
WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
  AND bucket.shards = asked.shards AND bucket.earlier_counts IS NULL AND asked.is_plain
  --@include token_bucket.enough

--@ part returning: the balances after that
RETURNING
  asked.nth,
  CASE
    WHEN asked.shards > 1 THEN greatest(pair_balances[asked.nth] * asked.shards / 2 - amount, bucket.value)
    WHEN abs(bucket.value) <= asked.tolerance THEN 0
    ELSE bucket.value
  END AS left_over,
  CASE
    WHEN asked.reserves AND bucket.value < - asked.tolerance
    THEN (
      SELECT
        --@include token_bucket.reserved_wait
      FROM (SELECT bucket.value AS left_over, bucket.ts AS left_at) AS b
    )
  END AS wait

--@ part choose: for each sharded one a row, and what both drawn hold
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
      --@include drawn
    FROM (
      --@include asked
    ) AS a
    OFFSET 0
  ) AS a
  LEFT JOIN LATERAL (
    --@include of_two
  ) AS p ON a.shards > 1 AND a.is_plain AND NOT locks_first
) AS c;

--@ part asked: what each plain call asks, in the global order
SELECT
  a.*,
  kind = 'token_bucket' AND times >= 1
  AND (first_short_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (first_short_name, first_short_key)) AND
  --@include plain_limit
  AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
  AS is_plain
FROM (
  SELECT
    l.*,
    -- Not a constant, which would be looked up on its own.
    CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
    1e-9 + 1e-14 * l.capacity AS tolerance,
    CASE
      WHEN l.reserves
      THEN
        --@include needed_to_reserve
      ELSE l.amount - (1e-9 + 1e-14 * l.capacity)
    END AS needed
  FROM (
    SELECT
      i.nth::integer AS nth,
      i.name,
      i.key,
      limit_kinds[i.nth_limit] AS kind,
      limit_rates[i.nth_limit] / i.shards AS rate,
      limit_periods[i.nth_limit] AS period,
      coalesce(limit_capacities[i.nth_limit], limit_rates[i.nth_limit]) / i.shards AS capacity,
      i.shards,
      i.times,
      i.count * i.times AS amount,
      i.reserves,
      CASE WHEN i.reserves THEN limit_max_reserved[i.nth_limit] END AS max_reserved
    FROM (
      SELECT
        u.nth,
        u.name,
        u.key,
        n.nth_limit,
        CASE WHEN limit_shards IS NULL THEN 1 ELSE nullif(coalesce(limit_shards[n.nth_limit], 1), 0) END AS shards,
        CASE WHEN item_counts IS NULL THEN 1 ELSE u.count END AS count,
        CASE WHEN call_times IS NULL THEN 1 ELSE u.times END AS times,
        coalesce(u.reserves, false) AS reserves
      -- The sub-select hides from the planner how many there are, or it would make a new plan for each few.
      FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
        WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
      CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
      OFFSET 0 -- Nothing is to be worked out twice.
    ) AS i
    OFFSET 0
  ) AS l
) AS a
ORDER BY a.name COLLATE "C", a.key COLLATE "C"
