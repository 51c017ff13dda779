-- rate_limit_claimed_jobs(bigint[], integer[])
-- SHA-256: 09886b51d6a045eeecdc167fdcf10e7652088554971f2c0f92a8e35793ccc10a

-- Returns the jobs that a worker has claimed, except those that were started again since.
CREATE OR REPLACE FUNCTION public.rate_limit_claimed_jobs(job_ids bigint[], job_starts integer[]) RETURNS SETOF public.rate_limit_jobs
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  SELECT j.*
  FROM unnest((SELECT rate_limit_claimed_jobs.job_ids), rate_limit_claimed_jobs.job_starts) AS u (id, starts)
  JOIN public.rate_limit_jobs AS j ON j.id = u.id AND j.starts = u.starts
  WHERE j.state = 'running';
END
$function$;
COMMENT ON FUNCTION public.rate_limit_claimed_jobs IS 'Returns the rows of jobs that were just claimed.';
