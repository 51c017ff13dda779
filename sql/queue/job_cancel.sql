-- Cancels a job that has not started, and returns its tokens. The jobs behind it that need the same tokens move up, except
-- those that failed before or have a not_before: each gets the time of the job before it. So the time that becomes free is
-- the last one, and the next job to be enqueued gets it. Only the next 1,000 jobs are examined, up to the first one that needs
-- another number of tokens: jobs behind it would overtake it. If there are more, the time of the last job that moved stays
-- free, and no token is returned: the times of the others stay as promised. A job that starts at its not_before has reserved
-- tokens of an earlier time. Then no job moves, and tokens are returned only if no newer job waits for its tokens. Returns the
-- state that the job was in, or NULL if there is no such job; the states 'scheduled' and 'available' mean that it was
-- cancelled. If the group waits for this job, workers look at the group again.
CREATE OR REPLACE FUNCTION rate_limit._job_cancel(
  queue_name text, job_id bigint, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $function$
DECLARE
  most CONSTANT integer := 1000;
  job rate_limit.jobs;
  waiting text;
  level bigint;
  behind_ids bigint[] := '{}';
  is_last boolean; -- the time that becomes free is the last one
  behind_run_ats bigint[];
  is_looked_at boolean := false; -- whether workers look at the group again
BEGIN
  SELECT j.* INTO job
  FROM rate_limit.jobs AS j
  WHERE j.id = job_id AND j.queue = queue_name;
  IF NOT FOUND OR job.state NOT IN ('scheduled', 'available') THEN
    RETURN job.state;
  END IF;
  -- Lock buckets before jobs, as enqueuing does, so that two cancellations in one group do not deadlock.
  PERFORM rate_limit._lock_buckets(job.limit_names, job.limit_keys);
  SELECT j.* INTO job
  FROM rate_limit.jobs AS j
  WHERE j.id = job_id
  FOR NO KEY UPDATE;
  IF NOT FOUND OR job.state NOT IN ('scheduled', 'available') THEN
    RETURN job.state;
  END IF;
  UPDATE rate_limit.jobs AS j
  SET state = 'cancelled', finished_at = rate_limit._clock(), blocked_by = NULL, awaits_turn = false
  WHERE j.id = job_id;
  IF job.awaits_turn THEN -- It has reserved nothing.
    RETURN job.state;
  ELSIF job.weight = 1 THEN -- The group may use the time that becomes free. A turn of several jobs is not over.
    UPDATE rate_limit.turns AS t
    SET reserved_until = 0
    WHERE t.queue = job.queue AND t.key = job.key;
  END IF;
  -- If it has paid ahead, the worker that takes the payment back does this.
  IF job.state = 'available' AND job.paid_until IS NULL THEN
    UPDATE rate_limit.groups AS g
    SET not_before = g.held_until, slot_pause = NULL
    WHERE g.queue = job.queue AND g.key = job.key AND g.not_before > g.held_until
      AND (g.slot_since = job.run_at OR g.refused_job = job_id);
    is_looked_at := FOUND;
  END IF;
  -- The jobs behind it, of every priority, in the order of the index.
  FOREACH waiting IN ARRAY CASE WHEN job.run_at = job.not_before THEN '{}'::text[] ELSE ARRAY['scheduled', 'available'] END LOOP
    level := 2147483648;
    LOOP
      SELECT j.priority INTO level
      FROM rate_limit.jobs AS j
      WHERE j.queue = job.queue AND j.key = job.key AND j.state = waiting
        AND j.state IN ('scheduled', 'available') AND NOT j.awaits_turn AND j.priority < level
      ORDER BY j.priority DESC
      LIMIT 1;
      EXIT WHEN NOT FOUND;
      behind_ids := behind_ids || ARRAY(
        SELECT j.id
        FROM rate_limit.jobs AS j
        WHERE j.queue = job.queue AND j.key = job.key AND j.state = waiting
          AND j.state IN ('scheduled', 'available') AND NOT j.awaits_turn AND j.priority = level
          AND (j.run_at, j.id) > (job.run_at, job.id)
        ORDER BY j.run_at, j.id
        LIMIT most + 1);
    END LOOP;
  END LOOP;
  -- Select by id only, so that the plan does not depend on statistics. (The subquery keeps the other conditions out.)
  SELECT array_agg(b.id) FILTER (WHERE b.is_alike), cardinality(behind_ids) <= most AND bool_and(b.is_alike) IS NOT FALSE
  INTO behind_ids, is_last
  FROM (
    SELECT b.id, bool_and(b.counts = job.counts) OVER (ORDER BY b.run_at, b.id) AS is_alike
    FROM (
      SELECT j.*
      FROM rate_limit.jobs AS j
      WHERE j.id = ANY ((SELECT behind_ids)::bigint[])
      ORDER BY j.run_at, j.id
      LIMIT most
    ) AS b
    WHERE b.not_before IS NULL AND b.failures = 0 AND b.limit_names = job.limit_names AND b.limit_keys = job.limit_keys
  ) AS b;
  -- This waits for jobs that a claim has locked, or the jobs behind those would overtake them. Claims are short, and do not
  -- wait for cancellations.
  SELECT array_agg(b.id ORDER BY b.run_at, b.id), array_agg(b.run_at ORDER BY b.run_at, b.id)
  INTO behind_ids, behind_run_ats
  FROM (
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY ((SELECT behind_ids)::bigint[])
    ORDER BY j.run_at, j.id
    FOR NO KEY UPDATE
    OFFSET 0
  ) AS b
  WHERE b.state IN ('scheduled', 'available'); -- Unless their state has changed.
  UPDATE rate_limit.jobs AS j
  SET run_at = m.run_at
  FROM unnest((SELECT behind_ids), job.run_at || behind_run_ats[:cardinality(behind_ids) - 1]) AS m (id, run_at)
  WHERE j.id = m.id;
  IF is_last AND NOT EXISTS (
    SELECT
    FROM (
      SELECT j.id, j.not_before, j.limit_names, j.limit_keys
      FROM rate_limit.jobs AS j
      WHERE j.queue = job.queue AND j.key = job.key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
        AND NOT j.awaits_turn AND job.run_at = job.not_before
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT most
    ) AS w
    WHERE w.id > job_id AND w.not_before IS NULL AND w.limit_names && job.limit_names AND w.limit_keys && job.limit_keys
  )
  THEN
    PERFORM rate_limit._correct(
      u.name, u.key, - u.count, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts,
      limit_shards)
    FROM (
      SELECT u.*
      FROM unnest(job.limit_names, job.limit_keys, job.counts) AS u (name, key, count)
      ORDER BY u.name COLLATE "C", u.key COLLATE "C"
    ) AS u;
  END IF;
  IF is_looked_at OR job.paid_until IS NOT NULL THEN -- Workers take back its payment.
    PERFORM rate_limit._ring(queue_name, rate_limit._clock());
  END IF;
  RETURN job.state;
END
$function$;
