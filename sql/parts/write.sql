-- Writes what has changed, in the global order: rows that are there, new ones, then those that go.
FOR i IN 1 .. buckets LOOP
  b := sorted[i];
  IF row_present[b] THEN
    IF NOT row_exists[b] THEN
      to_insert := to_insert || rows[b];
    ELSIF row_changed[b] THEN
      to_update := to_update || rows[b];
    END IF;
  ELSIF row_exists[b] THEN -- Reset, or put there only to be locked.
    to_delete := to_delete || b;
  END IF;
END LOOP;
IF to_delete IS NOT NULL AND locking IS NOT TRUE THEN -- Three statements, but the locks in one order.
  FOR i IN 1 .. buckets LOOP
    b := sorted[i];
    IF row_exists[b] AND (row_changed[b] OR NOT row_present[b]) THEN
      PERFORM
      FROM public.rate_limits AS r
      WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
      FOR UPDATE;
    END IF;
  END LOOP;
END IF;
IF to_update IS NOT NULL THEN
  UPDATE public.rate_limits AS r
  SET
    value = w.value,
    ts = w.ts,
    idle_at = w.idle_at,
    earlier_counts = w.earlier_counts
  FROM unnest((SELECT to_update)) AS w
  WHERE r.name = ANY (ARRAY[w.name]) AND r.key = w.key AND r.shard = w.shard; -- ANY: as above.
  GET DIAGNOSTICS written = ROW_COUNT;
  missed := cardinality(to_update) - written;
END IF;
IF to_insert IS NOT NULL THEN
  INSERT INTO public.rate_limits (name, key, shard, value, ts, idle_at, earlier_counts)
  SELECT w.name, w.key, w.shard, w.value, w.ts, w.idle_at, w.earlier_counts
  FROM unnest((SELECT to_insert)) AS w
  ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
  GET DIAGNOSTICS written = ROW_COUNT;
  missed := missed + cardinality(to_insert) - written;
END IF;
FOR i IN 1 .. coalesce(cardinality(to_delete), 0) LOOP
  DELETE FROM public.rate_limits AS r
  WHERE r.name = bucket_names[to_delete[i]] AND r.key = bucket_keys[to_delete[i]] AND r.shard = 0;
  missed := missed + CASE WHEN FOUND THEN 0 ELSE 1 END;
END LOOP;
IF missed > 0 THEN -- What was read is no longer what is there.
  RAISE EXCEPTION 'could not serialize access to % of % buckets', missed, buckets
    USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
END IF;
