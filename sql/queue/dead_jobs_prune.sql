-- Deletes jobs that have been dead for `dead_for` microseconds. It deletes up to `most` jobs of a queue (of all queues, if it is
-- NULL), the oldest first, and waits for no lock. Returns how many it deleted.
CREATE OR REPLACE FUNCTION rate_limit._dead_jobs_prune(queue_name text, dead_for bigint, most integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  pruned bigint;
BEGIN
  WITH dead AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.state = 'dead' AND j.finished_at <= clock - dead_for AND (queue_name IS NULL OR j.queue = queue_name)
    ORDER BY j.finished_at
    LIMIT most
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM rate_limit.jobs AS j
  USING dead AS d
  WHERE j.id = d.id;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END
$function$;
