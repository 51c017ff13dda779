-- Returns running jobs of a queue with expired leases. It skips locked jobs: a transaction is about to finish them.
CREATE OR REPLACE FUNCTION rate_limit._jobs_lapsed(queue_name text, most integer)
RETURNS TABLE (job_id bigint, job_starts integer)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
  SELECT j.id, j.starts
  FROM rate_limit.jobs AS j
  WHERE j.queue = queue_name AND j.state = 'running' AND j.lease_until <= rate_limit._clock()
  ORDER BY j.lease_until
  LIMIT most
  FOR NO KEY UPDATE SKIP LOCKED
$function$;
