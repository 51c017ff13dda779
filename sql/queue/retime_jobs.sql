-- Computes anew when the jobs of one group start, from what their limits grant now, and returns where to go on: a step of a
-- walk over the groups of a queue. Without it, jobs that were enqueued before a rate was raised, or before tokens were given
-- back, would keep their late times. Workers walk when they see that their limits are not those of the last walk.
--
-- Jobs of the same limits and keys keep their order: see _reserve_again.
--
-- Jobs with a time of their own are left alone: a not_before, a jitter, or an attempt that has failed. So are groups in which
-- more than 20,000 jobs wait.
--
--   after_key, after_id  where the last step has ended; NULL: begin
--   limit_*              all limits that the worker knows
--   results              next_key is NULL: the walk is over. Without next_id, the group is done; is_held: or rather, another
--                        transaction has locked or taken one of its buckets, and nothing was computed
CREATE OR REPLACE FUNCTION rate_limit._retime_jobs(
  queue_name text, worker_name text, after_key text, after_id bigint, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[],
  limit_shards integer[], OUT next_key text, OUT next_id bigint, OUT is_held boolean
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
SET lock_timeout = '1s'
AS $function$
#variable_conflict use_variable
DECLARE
  most CONSTANT integer := 1000;
  largest CONSTANT integer := 20000; -- a step reads all jobs that are left of the group
  known CONSTANT text[] := ARRAY(
    SELECT concat_ws(' ', l.name, l.kind, l.rate, l.period, coalesce(l.capacity, l.rate))
    FROM unnest(limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities) AS l (name, kind, rate, period, capacity)
    ORDER BY l.name);
  clock bigint := rate_limit._clock();
  ids bigint[];
  names text[];
  keys text[];
  has_rest boolean; -- whether there are more jobs than one step computes
  first_at bigint;
BEGIN
  IF after_key IS NULL AND EXISTS (
    SELECT
    FROM rate_limit.workers AS w
    WHERE w.queue = queue_name AND w.known_limits = known
  )
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.workers AS w
      WHERE w.queue = queue_name AND w.known_limits <> known
    )
  THEN
    RETURN; -- Another worker has walked.
  END IF;
  next_key := after_key;
  IF after_id IS NULL THEN
    SELECT j.key INTO next_key
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.key >= coalesce(after_key || E'\x01', '') AND j.state IN ('scheduled', 'available')
    ORDER BY j.key
    LIMIT 1;
    IF next_key IS NULL THEN
      UPDATE rate_limit.workers AS w
      SET known_limits = known
      WHERE w.queue = queue_name AND w.known_limits <> known;
      INSERT INTO rate_limit.workers AS w (queue, worker, asleep_until, known_limits)
      VALUES (queue_name, worker_name, clock, known)
      ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE
      SET known_limits = excluded.known_limits;
      RETURN;
    END IF;
  END IF;
  IF largest < (
    SELECT count(*)
    FROM (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = next_key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
        AND NOT j.awaits_turn
      LIMIT largest + 1
    ) AS w
  )
  THEN
    RETURN;
  END IF;

  -- Lock buckets before jobs, as enqueuing and cancelling do. These may lock them for long, with the caller's transaction.
  SELECT array_agg(b.name ORDER BY b.name, b.key), array_agg(b.key ORDER BY b.name, b.key) INTO names, keys
  FROM (
    SELECT DISTINCT u.name COLLATE "C" AS name, u.key COLLATE "C" AS key
    FROM rate_limit.jobs AS j
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS u (name, key)
    WHERE j.queue = queue_name AND j.key = next_key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
      AND NOT j.awaits_turn AND u.name = ANY (limit_names)
  ) AS b;
  is_held := coalesce(true = ANY (rate_limit._held(names, keys)), false);
  IF is_held THEN
    RETURN;
  END IF;
  PERFORM rate_limit._lock_buckets(names, keys);
  -- No claim starts a job of the group meanwhile. Its line looks at the limits again.
  INSERT INTO rate_limit.groups (queue, key)
  VALUES (queue_name, next_key)
  ON CONFLICT ON CONSTRAINT groups_pkey DO NOTHING;
  PERFORM
  FROM rate_limit.groups AS g
  WHERE g.queue = queue_name AND g.key = next_key
  FOR NO KEY UPDATE;
  clock := rate_limit._clock();
  ids := ARRAY(
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.key = next_key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
      AND j.run_at > clock AND j.id > coalesce(after_id, 0) AND j.not_before IS NULL AND j.jitter IS NULL AND j.starts = 0
      AND NOT j.awaits_turn AND j.limit_names <@ limit_names AND j.limit_names <> '{}'
    ORDER BY j.id
  );
  -- Jobs may have reserved from other buckets before the group was locked. Those buckets are not locked.
  is_held := EXISTS (
    SELECT u.name, u.key
    FROM unnest((SELECT ids)) AS i (id)
    JOIN rate_limit.jobs AS j ON j.id = i.id
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS u (name, key)
    EXCEPT
    SELECT b.name, b.key FROM unnest((SELECT names), keys) AS b (name, key)
  );
  IF is_held THEN
    RETURN;
  END IF;
  UPDATE rate_limit.groups AS g
  SET not_before = g.held_until, refused_job = NULL -- Asked too early, its first job has no reason to pay ahead.
  WHERE g.queue = queue_name AND g.key = next_key AND g.has_line AND g.slot_name IS NULL AND g.not_before > clock;
  IF FOUND THEN
    first_at := clock;
  END IF;

  PERFORM
  FROM rate_limit.jobs AS j
  WHERE j.id = ANY ((SELECT ids[:most])::bigint[])
  ORDER BY j.id
  FOR NO KEY UPDATE;
  has_rest := cardinality(ids) > most;
  IF ids <> '{}' THEN
    first_at := least(
      first_at,
      rate_limit._reserve_again(
        ids, most, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards));
  END IF;
  next_id := CASE WHEN has_rest THEN ids[most] END;
  IF first_at IS NOT NULL THEN
    UPDATE rate_limit.turns AS t -- The times of its last turn have changed.
    SET reserved_until = coalesce((SELECT max(j.run_at) FROM rate_limit.jobs AS j WHERE j.id = ANY (ids)), t.reserved_until)
    WHERE t.queue = queue_name AND t.key = next_key;
    PERFORM rate_limit._ring(queue_name, first_at);
  END IF;
END
$function$;
COMMENT ON FUNCTION rate_limit._retime_jobs IS 'Computes anew when the waiting jobs of a group start.';
