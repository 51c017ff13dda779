-- Returns the first job of each priority that waits for a turn of the group. It reads one job for each: a scan of the group for
-- due jobs would read all jobs of a priority that are due later.
CREATE OR REPLACE FUNCTION rate_limit._turn_fronts(queue_name text, job_key text) RETURNS TABLE (priority integer, run_at bigint)
LANGUAGE sql STABLE
AS $function$
  WITH RECURSIVE fronts AS (
    (
      SELECT j.priority, j.run_at
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = job_key AND j.awaits_turn AND j.blocked_by IS NULL
      ORDER BY j.priority DESC, j.run_at
      LIMIT 1
    )
    UNION ALL
    SELECT j.priority, j.run_at
    FROM fronts AS f
    CROSS JOIN LATERAL (
      SELECT j.priority, j.run_at
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = job_key AND j.awaits_turn AND j.blocked_by IS NULL AND j.priority < f.priority
      ORDER BY j.priority DESC, j.run_at
      LIMIT 1
    ) AS j
  )
  SELECT f.priority, f.run_at FROM fronts AS f
$function$;
COMMENT ON FUNCTION rate_limit._turn_fronts IS 'Returns the first job of each priority that waits for a turn of a group.';
