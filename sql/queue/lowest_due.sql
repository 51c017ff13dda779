-- Returns the first job of the lowest priority of a group, if it is due. Of the jobs in line and of the others, it looks only
-- at the lowest priority.
CREATE OR REPLACE FUNCTION rate_limit._lowest_due(queue_name text, job_key text, horizon bigint) RETURNS rate_limit.jobs
LANGUAGE plpgsql STABLE
AS $function$
DECLARE
  lowest rate_limit.jobs;
  job rate_limit.jobs;
BEGIN
  FOR nth IN 1 .. 2 LOOP
    SELECT j.* INTO job
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.key = job_key AND j.state = (ARRAY['available', 'scheduled'])[nth]
      AND j.state IN ('scheduled', 'available')
      AND j.priority = (
        SELECT l.priority
        FROM rate_limit.jobs AS l
        WHERE l.queue = queue_name AND l.key = job_key AND l.state = (ARRAY['available', 'scheduled'])[nth]
          AND l.state IN ('scheduled', 'available')
        ORDER BY l.priority, l.run_at DESC, l.id DESC
        LIMIT 1
      )
    ORDER BY j.run_at, j.id
    LIMIT 1;
    IF job.run_at <= horizon
      AND (lowest.id IS NULL OR (job.priority, job.run_at, job.id) < (lowest.priority, lowest.run_at, lowest.id))
    THEN
      lowest := job;
    END IF;
  END LOOP;
  RETURN lowest;
END
$function$;
COMMENT ON FUNCTION rate_limit._lowest_due IS 'Returns the first job of the lowest priority of a group, if it is due.';
