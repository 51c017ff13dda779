-- rate_limit_claimed(bigint[], integer[])
-- SHA-256: 3a9b4aa30d2e69d60b24b683fab82eb26b01fabddca2926b543c1f3fd4d0cd52

-- Returns claimed jobs like rate_limit_claimed_jobs, for workers of earlier releases, which know fewer columns.
CREATE OR REPLACE FUNCTION public.rate_limit_claimed(job_ids bigint[], job_starts integer[]) RETURNS TABLE (
  job_id bigint,
  job_key text,
  job_payload text,
  job_unique_id text,
  job_priority integer,
  job_run_at bigint,
  job_enqueued_at bigint,
  job_failures integer,
  job_max_attempts integer,
  job_limit_names text[],
  job_limit_keys text[],
  job_counts double precision[]
) LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  SELECT
    j.id, j.key, j.payload::text, j.unique_id, j.priority, j.run_at, j.enqueued_at, j.failures, j.max_attempts,
    j.limit_names, j.limit_keys, j.counts
  FROM public.rate_limit_claimed_jobs(rate_limit_claimed.job_ids, rate_limit_claimed.job_starts) AS j;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_claimed IS 'Returns what a worker needs to run the jobs that it has claimed.';
