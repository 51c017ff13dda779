-- Takes the reservations of jobs and writes the jobs, both or neither, in the caller's transaction.
--
--   limit_*, bucket_*, item_*  as for _decide
--   job_sizes        the number of items of each job
--   job_keys         the group of each job
--   job_payloads     JSON
--   job_unique_ids   if the queue has a job with this id, returns that job, until it is pruned. The id of a job that is dead or
--                    cancelled is free. NULL: no id
--   job_jitters      run_at is at random up to this many microseconds after the tokens are available; 0: it is not
--   job_not_befores  run_at is not before this time; NULL: as soon as the tokens are available
--   job_max_ages     in microseconds, from now or from job_not_befores on; a job that would start later is denied, and a job that
--                    has not started by then is cancelled. NULL: no job has such a bound
--   job_weights      the queue has turns: jobs reserve nothing now, but as many of a group together as this, when the group has
--                    its turn. job_run_ats is when that may be at the earliest, and max_reserved is no bound. NULL: it has none
--   only_estimate    takes nothing and writes nothing
--   job_slot_sizes   the number of slot items of each job; NULL: no job takes slots. A job takes them when it starts
--   slot_*           one element for each slot item: the limit, the key, and the number of slots
--   results          job_outcomes: scheduled; duplicate (of job_ids; nothing was taken); denied (by the limits in
--                    item_refused; job_waits is the time until it would be admitted); or past (its job_not_befores has passed).
--                    job_run_ats: when the job will run; job_waits: the microseconds until then. job_states: the states of
--                    duplicates; if they run or are done, job_run_ats has passed. job_aheads, only with only_estimate: how
--                    many jobs of the group wait already, up to 1,000
CREATE OR REPLACE FUNCTION rate_limit._enqueue(
  queue_name text, limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], job_sizes integer[], job_keys text[], job_payloads text[], job_priorities integer[],
  job_unique_ids text[], job_jitters bigint[], job_not_befores bigint[], job_max_attempts integer[], only_estimate boolean,
  job_slot_sizes integer[] DEFAULT NULL, slot_names text[] DEFAULT NULL, slot_keys text[] DEFAULT NULL,
  slot_counts double precision[] DEFAULT NULL, job_max_ages bigint[] DEFAULT NULL, job_weights integer[] DEFAULT NULL,
  OUT job_outcomes text[], OUT job_ids bigint[], OUT job_run_ats bigint[], OUT job_waits bigint[], OUT job_aheads bigint[],
  OUT item_refused boolean[], OUT item_values double precision[], OUT job_states text[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on
SET enable_tidscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  capacity CONSTANT double precision := coalesce(limit_capacities[1], limit_rates[1]); -- of the first limit
  wakes boolean; -- whether a worker sleeps until after the job's time
  is_late boolean; -- NULL: it has taken no tokens
BEGIN
  -- The most common call, one job with a token bucket that covers it or lets it wait: one statement, because PL/pgSQL sets up
  -- each expression in each transaction. It takes from the newest version of the row only, so it sees all earlier jobs.
  IF cardinality(job_keys) = 1 AND cardinality(bucket_names) = 1 AND cardinality(item_buckets) = 1
    AND limit_kinds[1] = 'token_bucket' AND coalesce(limit_shards[1], 1) = 1 AND NOT only_estimate AND job_slot_sizes IS NULL
    AND job_max_ages IS NULL AND job_weights IS NULL AND job_unique_ids[1] IS NULL AND NOT rate_limit._is_distributed()
    AND (job_not_befores[1] < rate_limit._clock() - 1000000) IS NOT TRUE
    AND (limit_max_reserved[1] BETWEEN 0 AND 1e13) IS NOT FALSE
  THEN
    WITH taken AS (
      UPDATE rate_limit.rate_limits AS r
      SET
        value = rate_limit._token_bucket_value(r.value, r.ts, c.now, limit_rates[1], limit_periods[1], capacity) - item_counts[1],
        ts = greatest(c.now, r.ts),
        idle_at = rate_limit._token_bucket_idle_at(
          rate_limit._token_bucket_value(r.value, r.ts, c.now, limit_rates[1], limit_periods[1], capacity) - item_counts[1],
          greatest(c.now, r.ts), limit_rates[1], limit_periods[1], capacity)
      FROM (SELECT rate_limit._clock() AS now OFFSET 0) AS c -- Read after the plan was made: only a lock makes it late.
      WHERE r.ctid = (
          SELECT s.ctid
          FROM rate_limit.rate_limits AS s
          WHERE s.name = bucket_names[1] AND s.key = bucket_keys[1] AND s.shard BETWEEN 0 AND 0
          ORDER BY s.shard DESC LIMIT 1)
        AND r.shards = 1 AND r.detail IS NULL
        AND rate_limit._token_bucket_value(r.value, r.ts, c.now, limit_rates[1], limit_periods[1], capacity)
          >= item_counts[1] - rate_limit._most_debt(limit_max_reserved[1], item_counts[1])
        AND rate_limit._in_range(limit_rates[1], limit_periods[1], capacity) AND rate_limit._is_exact(item_counts[1], capacity)
        AND NOT EXISTS (SELECT FROM rate_limit.groups AS g WHERE g.queue = queue_name AND g.key = job_keys[1] AND g.has_line)
        AND NOT EXISTS (SELECT FROM rate_limit.queues AS q WHERE q.queue = queue_name AND q.draining_at IS NOT NULL)
      RETURNING
        queue_name AS queue, job_keys[1] AS key, c.now, -- The planner does not see these values.
        r.value, rate_limit._clock() > c.now + rate_limit._late_after(1) AS is_late,
        r.ts + rate_limit._token_bucket_reserved_wait(
          r.value, item_counts[1], limit_rates[1], limit_periods[1], capacity) AS ready
    ), written AS (
      INSERT INTO rate_limit.jobs (
        queue, key, priority, run_at, not_before, jitter, payload, limit_names, limit_keys, counts, max_attempts, enqueued_at
      )
      SELECT
        t.queue, t.key, job_priorities[1],
        greatest(coalesce(t.ready, t.now) + (random() * job_jitters[1])::bigint, job_not_befores[1], l.run_at),
        job_not_befores[1], nullif(job_jitters[1], 0), job_payloads[1]::jsonb, bucket_names, bucket_keys, item_counts,
        job_max_attempts[1], t.now
      FROM taken AS t
      LEFT JOIN LATERAL rate_limit._last_time(t.queue, t.key, job_priorities[1], bucket_names, bucket_keys, t.now) AS l
        ON job_not_befores[1] IS NULL AND job_jitters[1] = 0
      WHERE NOT t.is_late
      RETURNING id, run_at
    )
    SELECT
      ARRAY['scheduled'], ARRAY[w.id], ARRAY[w.run_at], ARRAY[w.run_at - t.now], ARRAY[t.value], t.is_late,
      EXISTS (SELECT FROM rate_limit.workers AS o WHERE o.queue = queue_name AND o.asleep_until > w.run_at)
    INTO job_outcomes, job_ids, job_run_ats, job_waits, item_values, is_late, wakes
    FROM taken AS t LEFT JOIN written AS w ON true;
    IF NOT is_late THEN
      IF wakes THEN
        PERFORM rate_limit._ring(queue_name, job_run_ats[1]);
      END IF;
      RETURN;
    ELSIF is_late THEN -- It may have waited, so the tokens go back, and it is decided again (see _hand_on).
      PERFORM rate_limit._retake(
        bucket_names[1], bucket_keys[1], 0, 'token_bucket', limit_rates[1], limit_periods[1], capacity, NULL, 1, item_counts[1],
        0, NULL);
      job_outcomes := NULL;
    END IF;
  END IF;

  IF EXISTS (SELECT FROM rate_limit.queues AS q WHERE q.queue = queue_name AND q.draining_at IS NOT NULL) THEN
    RAISE EXCEPTION 'the queue "%" takes no new jobs: it is draining', queue_name
      USING ERRCODE = 'RL503', HINT = 'Resume the queue, or enqueue to another one.';
  END IF;

  IF cardinality(job_keys) <> ANY (ARRAY[
      cardinality(job_sizes), cardinality(job_payloads), cardinality(job_priorities), cardinality(job_unique_ids),
      cardinality(job_jitters), cardinality(job_not_befores), cardinality(job_max_attempts), cardinality(job_max_ages),
      cardinality(job_weights), cardinality(job_slot_sizes)])
    OR job_slot_sizes IS NOT NULL AND NOT coalesce(
      (SELECT coalesce(sum(s), 0) FROM unnest(job_slot_sizes) AS s)
        = ALL (ARRAY[cardinality(slot_names), cardinality(slot_keys), cardinality(slot_counts)])
        AND 0 <= ALL (job_slot_sizes) AND 1 <= ALL (slot_counts), false)
  THEN
    RAISE EXCEPTION 'the arrays for % jobs or for their slots differ in length, or a number of slots is below 1',
      cardinality(job_keys)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element for each job, and one for each slot item.';
  END IF;
  -- A job that is denied has returned its tokens, and does not have its unique id, before the next one is decided.
  IF job_weights IS NULL AND cardinality(job_keys) > 1
    AND (job_max_ages IS NOT NULL OR (SELECT count(u) > count(DISTINCT u) FROM unnest(job_unique_ids) AS u))
  THEN
    SELECT e.* INTO job_outcomes, job_ids, job_run_ats, job_waits, job_aheads, item_refused, item_values, job_states
    FROM rate_limit._enqueue_each(
      queue_name, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts,
      limit_resolutions, limit_shards, bucket_names, bucket_keys, item_buckets, item_limits, item_counts, job_sizes, job_keys,
      job_payloads, job_priorities, job_unique_ids, job_jitters, job_not_befores, job_max_attempts, only_estimate,
      job_slot_sizes, slot_names, slot_keys, slot_counts, job_max_ages) AS e;
    RETURN;
  END IF;
  IF array_remove(job_unique_ids, NULL) <> '{}' OR array_remove(job_not_befores, NULL) <> '{}' THEN
    job_outcomes := ARRAY(
      SELECT CASE
        WHEN u.not_before < rate_limit._clock() - 1000000 THEN 'past' -- The client's clock may be a little behind.
        WHEN u.unique_id IS NOT NULL AND (
          row_number() OVER (PARTITION BY u.unique_id, (u.not_before < rate_limit._clock() - 1000000) IS TRUE ORDER BY u.nth) > 1
          OR EXISTS (
            SELECT FROM rate_limit.jobs AS j
            WHERE j.queue = queue_name AND j.unique_id = u.unique_id AND j.state NOT IN ('dead', 'cancelled')))
        THEN 'duplicate'
      END
      FROM unnest((SELECT job_unique_ids), job_not_befores) WITH ORDINALITY AS u (unique_id, not_before, nth) ORDER BY u.nth);
  END IF;
  PERFORM rate_limit._create_buckets(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards, bucket_names, bucket_keys,
    item_buckets, item_limits)
  WHERE job_weights IS NOT NULL AND NOT only_estimate;
  SELECT e.job_outcomes, e.job_ids, e.job_run_ats, e.job_waits, e.item_refused, e.item_values, e.job_states
  INTO job_outcomes, job_ids, job_run_ats, job_waits, item_refused, item_values, job_states
  FROM rate_limit._enqueue_jobs(
    queue_name, limit_kinds, limit_rates, limit_periods, limit_capacities,
    CASE WHEN job_weights IS NULL THEN limit_max_reserved END, limit_starts, limit_resolutions, limit_shards, bucket_names,
    bucket_keys, item_buckets, item_limits, item_counts, job_sizes, job_keys, job_payloads, job_priorities, job_unique_ids,
    job_jitters, job_not_befores, job_max_attempts, only_estimate, job_slot_sizes, slot_names, slot_keys, slot_counts,
    job_max_ages, job_weights, job_outcomes) AS e;
  IF only_estimate THEN
    job_aheads := ARRAY(
      SELECT cardinality(ARRAY(
        SELECT j.id FROM rate_limit.jobs AS j
        WHERE j.queue = queue_name AND j.key = u.key AND j.state IN ('scheduled', 'available') LIMIT 1000))
      FROM unnest((SELECT job_keys)) WITH ORDINALITY AS u (key, nth) ORDER BY u.nth);
  END IF;
END
$function$;

-- As for _claim: the plans of the first calls of a session took longer than the calls.
DO $block$
BEGIN
  IF current_setting('plan_cache_mode', true) IS NOT NULL THEN
    ALTER FUNCTION rate_limit._enqueue SET plan_cache_mode = force_generic_plan;
  END IF;
END
$block$;
