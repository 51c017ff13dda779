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
  IF buckets > 1 THEN
    --@include look_first
  END IF;
  IF has_new OR (call_sizes IS NOT NULL AND (call_times IS NOT NULL OR locks_first)) THEN
    NULL; -- New rows are put there before any other is taken. A group is taken as a whole or not at all, by one snapshot.
  ELSE
    IF call_sizes IS NULL THEN
      --@include put_new
    ELSE
      --@include leave_short
    END IF;
    -- ANY, because `=` on the first column of the key would let the planner read a whole small table in its order, and keep
    -- to that when the table has grown.
    WITH u AS (
      --@include update
      --@include returning
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

--@ part update: takes what each asks, where there is enough
UPDATE public.rate_limits AS bucket
SET
  --@include token_bucket.taken_by_row
FROM
  --@include asked
  AS a
WHERE bucket.name = ANY (ARRAY[a.name]) AND bucket.key = a.key AND bucket.shard = a.shard
  AND bucket.shards = a.shards AND bucket.earlier_counts IS NULL AND is_plain AND nth <> ALL (left_out)
  --@include token_bucket.enough

--@ part leave_short: the items of groups that cannot be taken as a whole
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
    FROM
      --@include asked
      AS a
    OFFSET 0
  ) AS a
  LEFT JOIN LATERAL (
    --@include of_two
  ) AS p ON a.shards > 1 AND a.is_plain AND NOT locks_first
) AS c;

--@ part look_first: which rows are not there, and before which one the UPDATE has to stop
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
    --@include asked
    AS a
  LEFT JOIN LATERAL (
    SELECT
      true AS found,
      bucket.shards,
      bucket.earlier_counts,
      --@include token_bucket.flow
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

--@ part put_new: the rows that are not there, as they are once the tokens are taken
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
