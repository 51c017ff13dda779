-- rate_limit_jobs_lapsed(text, integer)
-- SHA-256: 40f17c2a4bcf2c13780e03858269b0b2dc33d328bdd743e5be52a4dba41acc2c

-- Returns running jobs of a queue with expired leases. It skips locked jobs: a transaction is about to finish them.
CREATE OR REPLACE FUNCTION public.rate_limit_jobs_lapsed(queue_name text, most integer) RETURNS TABLE (job_id bigint, job_starts integer)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
  SELECT j.id, j.starts
  FROM public.rate_limit_jobs AS j
  WHERE j.queue = queue_name AND j.state = 'running' AND j.lease_until <= public.rate_limit_clock()
  ORDER BY j.lease_until
  LIMIT most
  FOR NO KEY UPDATE SKIP LOCKED
$function$;
COMMENT ON FUNCTION public.rate_limit_jobs_lapsed IS 'Returns running jobs with expired leases.';
