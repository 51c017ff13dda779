-- Deletes the jobs of a key: jobs of this group, and jobs that reserved from one of these buckets. Jobs that have not started
-- are cancelled first, so that they return their tokens. Jobs that run stay. The arguments are those of rate_limit.forget.
CREATE OR REPLACE FUNCTION rate_limit._forget_jobs(
  key text, bucket_names text[], bucket_keys text[], limit_names text[], limit_kinds text[], limit_rates double precision[],
  limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[], limit_shards integer[], OUT jobs bigint,
  OUT running bigint
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = on
AS $function$
#variable_conflict use_variable
DECLARE
  keys CONSTANT text[] := ARRAY(SELECT DISTINCT k FROM unnest(bucket_keys || key) AS k);
  job_ids CONSTANT bigint[] := ARRAY(
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.key = _forget_jobs.key OR j.limit_keys && keys OR j.slot_keys && keys);
  job rate_limit.jobs;
  turn_queues text[];
  left_slots record; -- the slots that groups to be deleted wait for
BEGIN
  -- All buckets that the cancellations below return tokens to, and those to be deleted.
  PERFORM rate_limit._lock_buckets(array_agg(b.name), array_agg(b.key))
  FROM (
    SELECT i.name, i.key
    FROM rate_limit.jobs AS j
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS i (name, key)
    WHERE j.id = ANY (job_ids) AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
    UNION ALL
    SELECT u.name, u.key
    FROM unnest((SELECT bucket_names), bucket_keys) AS u (name, key)
    WHERE u.name NOT LIKE '%/started'
  ) AS b;
  -- Then the jobs and their groups, in the order in which a cancellation locks them.
  PERFORM
  FROM rate_limit.jobs AS j
  WHERE j.id = ANY (job_ids) AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
  ORDER BY j.run_at, j.id
  FOR NO KEY UPDATE;
  PERFORM
  FROM rate_limit.groups AS g
  WHERE g.key = _forget_jobs.key
  ORDER BY g.queue, g.key
  FOR UPDATE;
  -- The caller deletes these buckets, so their slots are free.
  PERFORM rate_limit._slots_freed(
    ARRAY['concurrency'], bucket_names, bucket_keys, NULL, NULL,
    array_fill(1::double precision, ARRAY[cardinality(bucket_names)]));

  -- The last jobs first, so that none moves up only to be cancelled, too.
  FOR job IN
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY (job_ids) AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
    ORDER BY j.run_at DESC, j.id DESC
  LOOP
    PERFORM rate_limit._job_cancel(
      job.queue, job.id, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards);
  END LOOP;
  FOR job IN
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY (job_ids) AND j.state = (SELECT 'cancelled') AND j.paid_until IS NOT NULL
    ORDER BY j.limit_names[j.paid_item] COLLATE "C", j.limit_keys[j.paid_item] COLLATE "C"
    FOR NO KEY UPDATE
  LOOP
    PERFORM rate_limit._unpay(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END LOOP;

  WITH ended AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY (job_ids) AND j.state IN ('done', 'dead', 'cancelled')
    ORDER BY j.id
    FOR UPDATE
  )
  DELETE FROM rate_limit.jobs AS j
  USING ended AS e
  WHERE j.id = e.id;
  GET DIAGNOSTICS jobs = ROW_COUNT;
  SELECT count(*) INTO running
  FROM rate_limit.jobs AS j
  WHERE j.id = ANY (job_ids);
  SELECT array_agg(g.slot_name) AS names, array_agg(g.slot_key) AS keys, array_agg(1::double precision) AS free INTO left_slots
  FROM rate_limit.groups AS g
  WHERE g.key = _forget_jobs.key AND g.slot_name IS NOT NULL;
  DELETE FROM rate_limit.groups AS g
  WHERE g.key = _forget_jobs.key
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = g.queue AND j.key = g.key AND j.state IN ('scheduled', 'available', 'running')
    );
  -- Not the row of a group for which another transaction adds a job: see _await_turns.
  turn_queues := ARRAY(
    SELECT t.queue
    FROM rate_limit.turns AS t
    WHERE t.key = _forget_jobs.key
    FOR UPDATE SKIP LOCKED
  );
  DELETE FROM rate_limit.turns AS t
  WHERE t.queue = ANY (turn_queues) AND t.key = _forget_jobs.key
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = t.queue AND j.key = t.key AND j.state = 'scheduled' AND j.awaits_turn
    );
  UPDATE rate_limit.turns AS t -- Its pause ends with its row in `groups`.
  SET reserved_until = 0
  WHERE t.key = _forget_jobs.key;
  -- The next group that waits for these slots looks when their lease ends.
  PERFORM rate_limit._slots_freed(ARRAY['concurrency'], left_slots.names, left_slots.keys, NULL, NULL, left_slots.free);
END
$function$;
