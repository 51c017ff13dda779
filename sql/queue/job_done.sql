-- Marks a job as done. Returns false if the job was started again since; the handler's transaction must then be rolled back.
-- If the job was settled while it ran, this also corrects the '/started' buckets.
CREATE OR REPLACE FUNCTION rate_limit._job_done(
  job_id bigint, job_starts integer, limit_names text[], limit_kinds text[], limit_rates double precision[],
  limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  job record;
BEGIN
  UPDATE rate_limit.jobs AS j
  SET state = 'done', finished_at = rate_limit._clock(), worker = NULL, lease_until = NULL
  WHERE j.id = job_id AND j.starts = job_starts
    AND j.state = (SELECT 'running') -- Hidden from the planner: otherwise it may read all running jobs, by their index.
  RETURNING j.limit_names, j.limit_keys, j.counts, j.used_counts INTO job;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF array_remove(job.used_counts, NULL) <> '{}' THEN
    -- Workers wait for these buckets. This bounds the wait if the COMMIT does not follow.
    PERFORM set_config('idle_in_transaction_session_timeout', '1s', true);
    PERFORM rate_limit._correct_started(
      array_agg(u.name), array_agg(u.key), array_agg(u.count), array_agg(u.used - u.count), NULL, limit_names, limit_kinds,
      limit_rates, limit_periods, limit_capacities, limit_starts)
    FROM unnest(job.limit_names, job.limit_keys, job.counts, job.used_counts) AS u (name, key, count, used)
    WHERE u.used <> u.count
    HAVING count(*) > 0;
  END IF;
  RETURN true;
END
$function$;
