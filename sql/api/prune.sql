-- Deletes idle rows. A row is idle once its idle_at has passed: its bucket is full, so the row means the same as no row. One
-- call examines the next `step` rows in the order of the primary key, starting after the given row or from the beginning. It
-- returns how many rows it deleted, and the last row that it examined, from which the next step continues; NULL when there
-- are no more rows.
--
-- The rows of a sharded bucket are deleted together with that of shard 0, or not at all. An idle row may still be needed: the
-- time since it was written accounts for tokens that have arrived for the other rows.
--
-- This waits for no lock: a locked row is in use. A call that needs a row being deleted waits for the end of this transaction,
-- so run each step in its own transaction. READ COMMITTED is enough, and does not fail.
CREATE OR REPLACE FUNCTION rate_limit.prune(
  step integer DEFAULT 1000, after_name text DEFAULT NULL, after_key text DEFAULT NULL, after_shard integer DEFAULT NULL,
  OUT pruned bigint, OUT last_name text, OUT last_key text, OUT last_shard integer
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_indexscan = on SET enable_nestloop = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  seen integer := 0;
  candidate record;
  last_of_bucket integer;
  all_locked boolean;
BEGIN
  IF NOT coalesce(step >= 1, false) THEN
    RAISE EXCEPTION 'invalid_step: a step looks at 1 row or more, not %', coalesce(step::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave step out: it is 1000 then.';
  END IF;
  pruned := 0;
  FOR candidate IN
    SELECT r.name, r.key, r.shard, r.shards, r.idle_at
    FROM rate_limit.rate_limits AS r
    WHERE (r.name, r.key, r.shard) > (coalesce(after_name, ''), coalesce(after_key, ''), coalesce(after_shard, -1))
    ORDER BY r.name, r.key, r.shard
    LIMIT step
  LOOP
    seen := seen + 1;
    last_name := candidate.name;
    last_key := candidate.key;
    last_shard := candidate.shard;
    CONTINUE WHEN candidate.idle_at > clock;
    last_of_bucket := candidate.shard;
    IF candidate.shard > 0 THEN -- Unless it is left over, it is deleted together with shard 0.
      CONTINUE WHEN EXISTS (
        SELECT
        FROM rate_limit.rate_limits AS r
        WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = 0 AND r.shards > candidate.shard
      );
    ELSIF candidate.shards > 1 THEN
      last_of_bucket := candidate.shards - 1;
      CONTINUE WHEN EXISTS (
        SELECT
        FROM unnest(rate_limit._bucket_rows(candidate.name, candidate.key, candidate.shards, false, false)) AS r
        WHERE r.idle_at > clock
      );
    END IF;
    -- Check again after locking: the rows may have been used since they were read. If the first one is gone, another pruner has
    -- deleted it, and a caller may insert a new one at any time. No other row appears without a lock on the first.
    FOR nth_shard IN candidate.shard .. last_of_bucket LOOP
      PERFORM
      FROM rate_limit.rate_limits AS r
      WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = nth_shard AND r.shards = candidate.shards
        AND r.idle_at <= clock
      FOR UPDATE SKIP LOCKED;
      all_locked := FOUND OR (nth_shard > candidate.shard AND NOT EXISTS (
        SELECT
        FROM rate_limit.rate_limits AS r
        WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = nth_shard
      ));
      EXIT WHEN NOT all_locked;
    END LOOP;
    CONTINUE WHEN NOT all_locked;
    FOR nth_shard IN candidate.shard .. last_of_bucket LOOP
      DELETE FROM rate_limit.rate_limits AS r
      WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = nth_shard AND r.idle_at <= clock;
      pruned := pruned + FOUND::integer;
    END LOOP;
  END LOOP;
  IF seen < step THEN
    last_name := NULL;
    last_key := NULL;
    last_shard := NULL;
  END IF;
END
$function$;
COMMENT ON FUNCTION rate_limit.prune IS 'Deletes rows that mean the same as no row, one step at a time.';
