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
        --@include token_bucket.kept_waiting
      FROM
        --@include asked
        AS a
      WHERE bucket.name = ANY (ARRAY[a.name]) AND bucket.key = a.key AND bucket.shard = a.shard
        AND nth = ANY (settled) AND bucket.ts < clock
      --@include returning
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
