-- The settled calls are answered now.
-- Whatever the statement has waited for since the UPDATE, these calls were decided as of a moment before the wait. They are
-- brought to the time after it, or tokens that flowed in meanwhile could be taken twice: by them, and by the next caller.
IF settled IS NOT NULL THEN
  IF public.rate_limit_clock() - settled_at > 1000 + 50 * buckets THEN
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
