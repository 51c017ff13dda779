-- rate_limit_jobs_discard(text, bigint[])
-- SHA-256: 9e0fb7ceaa2299120f52a5ba2a7770317f7e8416df9d4e1fc0c6e4dd56ccd27f

-- Deletes those of the given jobs that are dead and in this queue. Returns their ids.
CREATE OR REPLACE FUNCTION public.rate_limit_jobs_discard(queue_name text, job_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  WITH dead AS (
    SELECT j.id
    FROM public.rate_limit_jobs AS j
    WHERE j.id = ANY (job_ids) AND j.queue = queue_name AND j.state = 'dead'
    ORDER BY j.id
    FOR UPDATE
  )
  DELETE FROM public.rate_limit_jobs AS j
  USING dead AS d
  WHERE j.id = d.id
  RETURNING j.id;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_jobs_discard IS 'Deletes dead jobs by their ids.';
