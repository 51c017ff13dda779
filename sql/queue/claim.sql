-- Starts due jobs of a queue. No job starts before its run_at, and no group starts more jobs than its limits allow by the time
-- at which they start. Runs in its own READ COMMITTED transaction.
--
-- A reservation sets the time at which a job may run if everything goes well. Jobs start later if workers are late, a job
-- failed or its worker died. So each start also takes its tokens, from a second bucket of the same limit, with '/started'
-- added to its name. A job that is on time finds its tokens there. Otherwise it gets the state `available`: it waits in the
-- line of its group until the tokens are available. Its group waits, too: jobs in a line start in order, and are not read
-- before then.
--
-- Groups may share such a bucket. To avoid starvation, a job that is denied a second time pays ahead: it takes its tokens,
-- and the bucket is in debt until the job's time (paid_until). A job does not pay ahead of one with a higher priority, unless it
-- has the turn of the lowest priority. Only one job at a time pays ahead from a bucket. A bucket in
-- debt denies all other jobs; their groups are claimed again right after that time. At its time the job gets its payment back
-- and asks again, before all others. So a payment never lets more jobs start than the rate allows, however late the worker
-- is. If anything was taken from the bucket since that time, the payment has expired. A job with several limits pays ahead
-- for the limit that it waits for longest, and other jobs can still take the tokens of its other limits.
--
-- The claim is one statement that commits on its own, with a result that fits into any buffer: a worker that is paused or
-- disconnected keeps no row locked. The worker reads the payloads afterwards (_claimed_jobs).
--
--   most      the most jobs to start
--   ahead     in microseconds; jobs that start within this time are claimed, too. The worker waits for their times, so that the
--             time that claiming takes does not delay each of them. At most a second: it moves buckets ahead of the clock
--   lease     in microseconds; a job runs again when its lease has expired
--   sleep     in microseconds; a worker that gets fewer jobs than `most` counts as asleep for so long
--   limit_*   all limits that the worker knows; jobs with other limits are left alone. A job takes the slots of concurrency
--             limits if all of them are free: otherwise its group waits, until slots are released or a lease ends
--   listens   whether the worker hears notifications. Only then does it count as asleep
--   results   the jobs, in the order in which they start, with the microseconds until each start (job_start_in), and a last row
--             without a job. In that row, next_in is the time in microseconds until there may be something to do (NULL:
--             nothing is known to come); lapsed means that some leases have expired; look_again means to claim again before
--             sleeping, because jobs may have arrived before this worker counted as asleep, or may be behind jobs that were
--             put in line; blocked_names: limits that this worker does not know, or knows of another kind, and due jobs need;
--             passed: how many other jobs this worker has started while one of the lowest priority was due. It gives that to its
--             next claim as `passed_over`: after nine of them, the first job of the lowest priority is next
--
-- The claim that has locked a group's row starts the group's jobs, in the order of (priority, run_at, id). Other claims skip
-- locked groups.
CREATE OR REPLACE FUNCTION rate_limit._claim(
  queue_name text, worker_name text, most integer, ahead bigint, lease bigint, sleep bigint, limit_names text[],
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], listens boolean DEFAULT true, passed_over integer DEFAULT 0,
  limit_shards integer[] DEFAULT NULL
) RETURNS TABLE (
  job_id bigint, job_starts integer, job_start_in bigint, next_in bigint, lapsed boolean, look_again boolean,
  blocked_names text[], passed integer
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
SET lock_timeout = '1s'
AS $function$
DECLARE
  clock bigint := rate_limit._clock();
  horizon bigint;
  groups rate_limit.groups[]; -- locked by this claim
  due_ids bigint[];
  front_ids bigint[];
  lowest_priority integer;
  lowest_id bigint;
  started_ids bigint[] := '{}';
  started_ats bigint[] := '{}';
  stopped_ids bigint[];
  stopped_ats bigint[];
  has_parked boolean := false;
  is_paused CONSTANT boolean := EXISTS (SELECT FROM rate_limit.queues AS q WHERE q.queue = queue_name AND q.paused_at > 0);
  -- the concurrency limits among limit_*, which leave out the others
  slot_limit_names text[] := '{}';
  slot_capacities double precision[];
  slot_periods bigint[];
  started_leases bigint[];
  waiting rate_limit.groups[];
  slot_buckets rate_limit.rate_limits[];
BEGIN
  IF NOT coalesce(most >= 1 AND ahead BETWEEN 0 AND 1000000 AND lease >= 1 AND sleep >= 1, false) THEN
    RAISE EXCEPTION 'invalid_claim: %', CASE
        WHEN (most >= 1) IS NOT TRUE THEN format('most is %s, not 1 or more', coalesce(most::text, 'NULL'))
        WHEN (ahead BETWEEN 0 AND 1000000) IS NOT TRUE THEN format('ahead is %s, not 0 to 1000000', coalesce(ahead::text, 'NULL'))
        WHEN (lease >= 1) IS NOT TRUE THEN format('lease is %s, not 1 or more', coalesce(lease::text, 'NULL'))
        ELSE format('sleep is %s, not 1 or more', coalesce(sleep::text, 'NULL'))
      END
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a value from this range; lengths are in microseconds.';
  END IF;

  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'jobs are claimed at READ COMMITTED, not at %', current_setting('transaction_isolation')
      USING ERRCODE = 'invalid_transaction_state', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
  END IF;

  IF 'concurrency' = ANY (limit_kinds) THEN
    SELECT
      array_agg(l.name) FILTER (WHERE l.is_slot), array_agg(l.rate) FILTER (WHERE l.is_slot),
      array_agg(l.period) FILTER (WHERE l.is_slot), coalesce(array_agg(l.name) FILTER (WHERE NOT l.is_slot), '{}'),
      array_agg(l.kind) FILTER (WHERE NOT l.is_slot), array_agg(l.rate) FILTER (WHERE NOT l.is_slot),
      array_agg(l.period) FILTER (WHERE NOT l.is_slot), array_agg(l.capacity) FILTER (WHERE NOT l.is_slot),
      array_agg(l.start) FILTER (WHERE NOT l.is_slot), array_agg(l.shards) FILTER (WHERE NOT l.is_slot)
    INTO slot_limit_names, slot_capacities, slot_periods, limit_names, limit_kinds, limit_rates, limit_periods,
      limit_capacities, limit_starts, limit_shards
    FROM (
      SELECT l.*, l.kind = 'concurrency' AS is_slot
      FROM unnest(limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards)
        AS l (name, kind, rate, period, capacity, start, shards)
    ) AS l;
  END IF;

  -- A claim that takes turns, takes payments back, or lets jobs be found again, does nothing else.
  SELECT t.has_changed, t.blocked_names INTO look_again, blocked_names
  FROM rate_limit._take_turns(
    queue_name, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards,
    slot_limit_names
  ) AS t
  WHERE NOT is_paused;
  IF look_again OR rate_limit._prepare_claim(
    queue_name, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, slot_limit_names)
  THEN
    lapsed := false;
    look_again := true;
    RETURN NEXT;
    RETURN;
  END IF;

  horizon := clock + ahead;
  IF NOT is_paused THEN
    SELECT l.groups, l.due_ids, l.front_ids, l.lowest_priority, l.lowest_id, l.blocked_names
    INTO groups, due_ids, front_ids, lowest_priority, lowest_id, blocked_names
    FROM rate_limit._lock_due(queue_name, most, horizon, limit_names, slot_limit_names) AS l;
  END IF;
  IF cardinality(groups) > 0 THEN
    SELECT
      s.started_ids, s.started_ats, s.started_leases, s.stopped_ids, s.stopped_ats, s.waiting, s.slot_buckets, s.passed
    INTO started_ids, started_ats, started_leases, stopped_ids, stopped_ats, waiting, slot_buckets, passed
    FROM rate_limit._start_jobs(
      queue_name, most, clock, horizon, ARRAY(SELECT g FROM unnest(groups) AS g WHERE g.not_before <= horizon), due_ids,
      front_ids, lowest_id, lowest_priority, passed_over, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities,
      limit_starts, slot_limit_names, slot_capacities, slot_periods
    ) AS s;
    has_parked := rate_limit._stop_groups(
      queue_name, horizon, groups, due_ids, started_ids, stopped_ids, stopped_ats, waiting);
    FOR nth IN 1 .. coalesce(cardinality(slot_buckets), 0) LOOP
      PERFORM rate_limit._pass_slots_on(
        slot_buckets[nth], slot_capacities[array_position(slot_limit_names, (slot_buckets[nth]).name)], clock);
    END LOOP;
    clock := rate_limit._clock();
    -- The claim took longer than it looks ahead, and a token that came meanwhile may be for a group of a higher priority. This
    -- claim has not looked at that group; the next one does.
    IF clock > horizon THEN
      IF EXISTS (
        SELECT
        FROM rate_limit.groups AS g
        JOIN rate_limit.jobs AS j ON j.queue = g.queue AND j.key = g.key AND j.state = 'available'
        WHERE g.queue = (SELECT queue_name) AND g.has_line AND g.not_before > (SELECT horizon) AND g.not_before <= (SELECT clock)
          AND j.priority > (SELECT min(s.priority) FROM rate_limit.jobs AS s WHERE s.id = ANY ((SELECT started_ids)::bigint[]))
      )
      THEN
        RAISE EXCEPTION 'could not claim jobs in time'
          USING ERRCODE = 'serialization_failure', HINT = 'Claim again.';
      END IF;
    END IF;
  END IF;

  RETURN QUERY
  WITH updated AS (
    UPDATE rate_limit.jobs AS j
    SET
      state = 'running',
      starts = j.starts + 1,
      paid_until = NULL,
      paid_item = NULL,
      started_at = greatest(s.at, clock),
      lease_until = clock + lease,
      worker = worker_name,
      slot_lease = s.slots_under
    FROM unnest((SELECT started_ids), started_ats, started_leases) WITH ORDINALITY AS s (id, at, slots_under, nth)
    WHERE j.id = s.id
    RETURNING j.id, j.starts, j.started_at, s.nth
  )
  SELECT u.id, u.starts, u.started_at - clock, NULL::bigint, NULL::boolean, NULL::boolean, NULL::text[], NULL::integer
  FROM updated AS u
  ORDER BY u.nth;

  job_id := NULL;
  SELECT n.next_in, n.lapsed, n.look_again INTO next_in, lapsed, look_again
  FROM rate_limit._plan_claim(
    queue_name, worker_name, clock, sleep, is_paused, cardinality(started_ids) = most, has_parked OR blocked_names IS NOT NULL,
    limit_names, slot_limit_names, slot_capacities, listens
  ) AS n;
  RETURN NEXT;
END
$function$;

-- A session plans each statement anew in each of its first five calls, and a claim has forty of them. (PostgreSQL 11 has no such
-- setting.)
DO $block$
BEGIN
  IF current_setting('plan_cache_mode', true) IS NOT NULL THEN
    ALTER FUNCTION rate_limit._claim SET plan_cache_mode = force_generic_plan;
  END IF;
END
$block$;
