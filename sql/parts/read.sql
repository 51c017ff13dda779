-- Reads the rows, and locks them if that is to be.
IF buckets = 1 THEN
  SELECT r.*
  INTO bucket
  FROM public.rate_limits AS r
  WHERE r.name = bucket_names[1] AND r.key = bucket_keys[1] AND r.shard = 0;
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

IF locking THEN
  -- In the order in which others write: the rows that are there, then those that are not. These cannot be locked: put
  -- one there, or wait for the one who does.
  FOREACH missing_ones IN ARRAY ARRAY[false, true] LOOP
    FOR i IN 1 .. buckets LOOP
      b := sorted[i];
      CONTINUE WHEN is_settled[b] OR row_exists[b] = missing_ones;
      LOOP
        SELECT r.*
        INTO bucket
        FROM public.rate_limits AS r
        WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
        FOR NO KEY UPDATE;
        row_exists[b] := FOUND;
        row_present[b] := FOUND;
        EXIT WHEN FOUND OR NOT missing_ones;
        INSERT INTO public.rate_limits (name, key, shard, value, ts, idle_at)
        VALUES (bucket_names[b], bucket_keys[b], 0, 0, 0, 0)
        ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
        row_exists[b] := FOUND;
        EXIT WHEN FOUND;
      END LOOP;
      rows[b] := bucket;
    END LOOP;
  END LOOP;
END IF;
