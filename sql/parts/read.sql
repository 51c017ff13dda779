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
        --@include lock_chosen
      ELSE
        CONTINUE WHEN row_exists[b] = missing_ones;
      END IF;
      IF hurried THEN
        --@include lock_free
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
          --@include out_of_order
        END IF;
      END LOOP;
      holds_some := true;
      IF row_exists[b] AND (looks_at_all[b] OR bucket.shards <> coalesce(bucket_shards[b], 1)) THEN
        --@include lock_others
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
      --@include read_shares
    ELSIF bucket_shards[b] > 1 AND locking IS NOT TRUE THEN
      --@include read_pair
    END IF;
  END LOOP;
END IF;

--@ part read_pair: the two rows drawn, first one that is free
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

--@ part lock_chosen: the row that was decided on
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

--@ part lock_others: the rows of the other shards; nobody divides the bucket anew who does not hold that of shard 0
looks_at_all[b] := true;
FOR nth_shard IN 1 .. greatest(bucket.shards, bucket_shards[b], 1) - 1 LOOP
  PERFORM
  FROM public.rate_limits AS r
  WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = nth_shard
  FOR NO KEY UPDATE;
END LOOP;

--@ part lock_free: its rows, as far as nobody else has them
nth_shard := 0;
LOOP
  SELECT r.*
  INTO bucket
  FROM public.rate_limits AS r
  WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = nth_shard
  FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    --@include out_of_order
  END IF;
  rows[b] := bucket;
  looks_at_all[b] := looks_at_all[b] OR bucket.shards <> coalesce(bucket_shards[b], 1);
  nth_shard := nth_shard + 1;
  EXIT WHEN looks_at_all[b] IS NOT TRUE OR nth_shard >= bucket.shards;
END LOOP;
row_exists[b] := true;
row_present[b] := true;

--@ part read_shares: all rows of the bucket; how many there are says that of shard 0
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
