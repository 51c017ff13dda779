-- Cancels these expired jobs, and returns whether it cancelled any. It skips locked jobs, and jobs of locked groups: the next
-- claim cancels them. If a group waits for such a job, workers look at the group again. No token is returned: as a rule, the
-- reserved time of such a job is over.
CREATE OR REPLACE FUNCTION rate_limit._expire_jobs(queue_name text, late_ids bigint[]) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  groups rate_limit.groups[];
  job_ids bigint[];
BEGIN
  groups := ARRAY(
    SELECT g
    FROM rate_limit.groups AS g
    WHERE g.queue = queue_name
      AND g.key = ANY (ARRAY(SELECT j.key FROM rate_limit.jobs AS j WHERE j.id = ANY ((SELECT late_ids)::bigint[])))
    ORDER BY g.key
    FOR NO KEY UPDATE SKIP LOCKED
  );
  job_ids := ARRAY(
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY ((SELECT late_ids)::bigint[]) AND j.expires_at <= clock
      AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
      AND (
        EXISTS (
          SELECT
          FROM unnest((SELECT groups)) AS g
          WHERE g.key = j.key
        )
        OR NOT EXISTS (
          SELECT
          FROM rate_limit.groups AS g
          WHERE g.queue = queue_name AND g.key = j.key
        )
      )
    FOR NO KEY UPDATE SKIP LOCKED
  );
  UPDATE rate_limit.groups AS g
  SET not_before = g.held_until, slot_pause = NULL
  FROM unnest((SELECT groups)) AS o
  JOIN rate_limit.jobs AS j ON j.id = ANY ((SELECT job_ids)::bigint[]) AND j.key = o.key
  WHERE g.queue = queue_name AND g.key = o.key AND g.not_before > g.held_until
    AND (g.slot_since = j.run_at OR g.refused_job = j.id);
  UPDATE rate_limit.jobs AS j
  SET state = 'cancelled', finished_at = clock, blocked_by = NULL, awaits_turn = false,
    last_error = 'expired: it was older than its max_age'
  WHERE j.id = ANY ((SELECT job_ids)::bigint[]);
  RETURN job_ids <> '{}';
END
$function$;
COMMENT ON FUNCTION rate_limit._expire_jobs IS 'Cancels jobs that have waited for too long.';
