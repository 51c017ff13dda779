-- rate_limit_dead_jobs_prune(text, bigint, integer)
-- SHA-256: 967b76c4a29da125d212aa7ed62169508f655cf3f923c32389a4d1af163ea4a2

-- Deletes up to `most` jobs of a queue (of all queues, if it is NULL) that have been dead for `dead_for` microseconds, the
-- oldest first, without waiting for locks. Returns how many it deleted.
CREATE OR REPLACE FUNCTION public.rate_limit_dead_jobs_prune(queue_name text, dead_for bigint, most integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  pruned bigint;
BEGIN
  WITH dead AS (
    SELECT j.id
    FROM public.rate_limit_jobs AS j
    WHERE j.state = 'dead' AND j.finished_at <= clock - dead_for AND (queue_name IS NULL OR j.queue = queue_name)
    ORDER BY j.finished_at
    LIMIT most
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM public.rate_limit_jobs AS j
  USING dead AS d
  WHERE j.id = d.id;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_dead_jobs_prune IS 'Deletes jobs that have been dead for some time.';
