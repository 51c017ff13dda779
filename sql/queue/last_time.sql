-- Returns the time of the last waiting job of a group and priority that needs tokens of these buckets; no row if there is none. A
-- new job does not start before it, even if its tokens are available earlier, because the limit grants more than it did, or
-- tokens were given back. Jobs with a time of their own (a not_before, a jitter, an attempt that has failed) do not count. It
-- looks at the last 1,000 jobs after the time `after`, and stops at the first one that counts, which is most often the last job.
-- Inlined, if no argument has a sub-select.
CREATE OR REPLACE FUNCTION rate_limit._last_time(
  queue_name text, job_key text, job_priority integer, names text[], bucket_keys text[], after bigint
) RETURNS TABLE (run_at bigint) LANGUAGE sql STABLE
AS $function$
  SELECT l.run_at
  FROM (
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.key = job_key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
      AND j.priority = job_priority AND NOT j.awaits_turn AND j.run_at > after
    ORDER BY j.run_at DESC, j.id DESC
    LIMIT 1000
  ) AS l
  WHERE l.not_before IS NULL AND l.jitter IS NULL AND l.starts = 0 AND l.limit_names = names AND l.limit_keys = bucket_keys
  ORDER BY l.run_at DESC -- The order of the sub-select.
  LIMIT 1
$function$;
COMMENT ON FUNCTION rate_limit._last_time IS 'Returns the time of the last waiting job before a new one.';
