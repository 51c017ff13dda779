-- Extends the leases of jobs, and returns which of them are still running. A locked row is skipped: while its handler's
-- transaction has locked it, no other worker takes the job over.
CREATE OR REPLACE FUNCTION rate_limit._job_extend(job_ids bigint[], job_starts integer[], lease bigint) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
BEGIN
  WITH free AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    JOIN unnest((SELECT job_ids), job_starts) AS u (id, starts) ON j.id = u.id AND j.starts = u.starts
    WHERE j.state = (SELECT 'running')
    FOR NO KEY UPDATE OF j SKIP LOCKED
  )
  UPDATE rate_limit.jobs AS j
  SET lease_until = rate_limit._clock() + lease
  FROM free AS f
  WHERE j.id = f.id;
  RETURN QUERY
  SELECT j.id
  FROM rate_limit.jobs AS j
  JOIN unnest((SELECT job_ids), job_starts) AS u (id, starts) ON j.id = u.id AND j.starts = u.starts
  WHERE j.state = (SELECT 'running');
END
$function$;
