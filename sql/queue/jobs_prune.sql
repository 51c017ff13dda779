-- Deletes old jobs that have ended, empty groups and workers that are gone. A job is old if it was done or cancelled `ended_for`
-- microseconds ago; dead jobs stay. It deletes up to `most` jobs and groups, and waits for no lock. Returns how many jobs it
-- deleted.
CREATE OR REPLACE FUNCTION rate_limit._jobs_prune(queue_name text, ended_for bigint, most integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  pruned bigint;
BEGIN
  WITH ended AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.state IN ('done', 'cancelled') AND j.finished_at <= clock - ended_for
    ORDER BY j.finished_at
    LIMIT most
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM rate_limit.jobs AS j
  USING ended AS e
  WHERE j.id = e.id;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  WITH idle AS (
    SELECT g.queue, g.key
    FROM rate_limit.groups AS g
    WHERE g.queue = queue_name AND NOT g.has_line AND g.not_before <= clock
      AND NOT EXISTS (
        SELECT
        FROM rate_limit.jobs AS j
        WHERE j.queue = g.queue AND j.key = g.key AND j.state IN ('scheduled', 'available')
      )
    LIMIT most
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM rate_limit.groups AS g
  USING idle AS i
  WHERE g.queue = i.queue AND g.key = i.key;
  DELETE FROM rate_limit.workers AS w
  WHERE w.queue = queue_name AND w.asleep_until < clock - 86400000000::bigint;
  RETURN pruned;
END
$function$;
