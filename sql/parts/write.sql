-- Writes what has changed, each in the global order: new rows, those that are there, then those that go.
FOR i IN 1 .. buckets LOOP
  b := sorted[i];
  IF share_counts[b] IS NOT NULL THEN
    --@include split
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
