-- rate_limit_jobs_prune(text, bigint, integer)
-- SHA-256: 3649d32767c955bd3004e0f6bd08667d58f1b9a7592b4061f27c388b88d53efd

-- Deletes jobs of a queue that ended `ended_for` microseconds ago (done or cancelled; dead jobs stay), groups without waiting
-- jobs, and workers that are gone: up to `most` jobs and groups, without waiting for locks. Returns how many jobs it deleted.
CREATE OR REPLACE FUNCTION public.rate_limit_jobs_prune(queue_name text, ended_for bigint, most integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  pruned bigint;
BEGIN
  WITH ended AS (
    SELECT j.id
    FROM public.rate_limit_jobs AS j
    WHERE j.queue = queue_name AND j.state IN ('done', 'cancelled') AND j.finished_at <= clock - ended_for
    ORDER BY j.finished_at
    LIMIT most
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM public.rate_limit_jobs AS j
  USING ended AS e
  WHERE j.id = e.id;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  WITH idle AS (
    SELECT g.queue, g.key
    FROM public.rate_limit_groups AS g
    WHERE g.queue = queue_name AND NOT g.has_line AND g.not_before <= clock
      AND NOT EXISTS (
        SELECT
        FROM public.rate_limit_jobs AS j
        WHERE j.queue = g.queue AND j.key = g.key AND j.state IN ('scheduled', 'available')
      )
    LIMIT most
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM public.rate_limit_groups AS g
  USING idle AS i
  WHERE g.queue = i.queue AND g.key = i.key;
  DELETE FROM public.rate_limit_workers AS w
  WHERE w.queue = queue_name AND w.asleep_until < clock - 86400000000::bigint;
  RETURN pruned;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_jobs_prune IS 'Deletes old jobs that have ended, empty groups and workers that are gone.';
