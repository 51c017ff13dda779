-- Returns the jobs that a worker has claimed, except those that were started again since.
CREATE OR REPLACE FUNCTION rate_limit._claimed_jobs(job_ids bigint[], job_starts integer[]) RETURNS SETOF rate_limit.jobs
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  SELECT j.*
  FROM unnest((SELECT _claimed_jobs.job_ids), _claimed_jobs.job_starts) AS u (id, starts)
  JOIN rate_limit.jobs AS j ON j.id = u.id AND j.starts = u.starts
  WHERE j.state = (SELECT 'running'); -- Hidden from the planner: see _job_done.
END
$function$;
