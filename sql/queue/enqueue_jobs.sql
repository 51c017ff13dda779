-- Enqueues any number of jobs, or estimates when they would run: see _enqueue. The job_outcomes that are known before the limits
-- decide are given; NULL: none is.
CREATE OR REPLACE FUNCTION rate_limit._enqueue_jobs(
  queue_name text, limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], job_sizes integer[], job_keys text[], job_payloads text[], job_priorities integer[],
  job_unique_ids text[], job_jitters bigint[], job_not_befores bigint[], job_max_attempts integer[], only_estimate boolean,
  job_slot_sizes integer[], slot_names text[], slot_keys text[], slot_counts double precision[], job_max_ages bigint[],
  job_weights integer[], INOUT job_outcomes text[],
  OUT job_ids bigint[], OUT job_run_ats bigint[], OUT job_waits bigint[], OUT item_refused boolean[],
  OUT item_values double precision[], OUT job_states text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock bigint;
  ops text[]; -- NULL: all jobs take tokens
  admitted integer[];
  line_keys text[] := job_keys; -- the group of each job, or of the existing job of its id
  line_priorities integer[] := job_priorities;
  last_items integer[]; -- the last item of each job
  other record;
BEGIN
  -- A job that exists already, has a not_before in the past, or waits for a turn takes no tokens now: it is only checked.
  IF only_estimate OR job_weights IS NOT NULL OR job_outcomes IS NOT NULL THEN
    ops := ARRAY(
      SELECT CASE WHEN only_estimate OR u.outcome IS NOT NULL OR job_weights IS NOT NULL THEN 'check' ELSE 'limit' END
      FROM unnest(job_keys, job_outcomes) WITH ORDINALITY AS u (key, outcome, nth)
      ORDER BY u.nth);
  END IF;

  item_values := '{}';
  IF item_counts <> '{}' THEN
    SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values
    INTO admitted, job_waits, item_refused, item_values
    FROM rate_limit._reserve_jobs(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
      limit_shards, bucket_names, bucket_keys, item_buckets, item_limits, item_counts, ops, job_sizes
    ) AS d;
  END IF;

  clock := rate_limit._clock(); -- After the locks, and not before the time at which the waits start.
  SELECT
    array_agg(o.outcome ORDER BY o.nth),
    array_agg(o.last_item ORDER BY o.nth),
    array_agg(CASE WHEN o.outcome = 'scheduled' THEN o.slot END ORDER BY o.nth),
    array_agg(
      CASE o.outcome WHEN 'scheduled' THEN o.slot - clock WHEN 'late' THEN o.slot - o.latest ELSE o.wait END ORDER BY o.nth)
  INTO job_outcomes, last_items, job_run_ats, job_waits
  FROM (
    SELECT
      u.nth, u.wait, u.last_item, s.slot, s.latest,
      CASE
        WHEN u.outcome IS NOT NULL THEN u.outcome
        WHEN coalesce(u.admitted, 1) = 1 OR job_weights IS NOT NULL
        THEN CASE WHEN s.slot > s.latest THEN 'late' ELSE 'scheduled' END
        -- The call may have waited for the job with the same id, which took the last tokens.
        WHEN u.unique_id IS NOT NULL AND EXISTS (
          SELECT FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.unique_id = u.unique_id AND j.state NOT IN ('dead', 'cancelled'))
        THEN 'duplicate'
        ELSE 'denied'
      END AS outcome
    FROM (
      SELECT
        u.*, queue_name AS queue, clock + coalesce(u.wait, 0) AS ready,
        CASE WHEN u.not_before IS NULL AND u.jitter = 0 AND job_weights IS NULL THEN u.key END AS line,
        CASE
          WHEN u.size = 1 THEN ARRAY[bucket_names[item_buckets[u.last_item]]]
          ELSE ARRAY(SELECT bucket_names[b] FROM unnest(item_buckets[u.last_item - u.size + 1:u.last_item]) AS b)
        END AS names,
        CASE
          WHEN u.size = 1 THEN ARRAY[bucket_keys[item_buckets[u.last_item]]]
          ELSE ARRAY(SELECT bucket_keys[b] FROM unnest(item_buckets[u.last_item - u.size + 1:u.last_item]) AS b)
        END AS keys
      FROM (
        SELECT u.*, sum(u.size) OVER (ORDER BY u.nth)::integer AS last_item
        FROM unnest(
          (SELECT job_keys), job_priorities, job_sizes, job_outcomes, admitted, job_waits, job_unique_ids, job_jitters,
          job_not_befores, job_max_ages
        ) WITH ORDINALITY AS u (key, priority, size, outcome, admitted, wait, unique_id, jitter, not_before, max_age, nth)
      ) AS u
      OFFSET 0
    ) AS u
    LEFT JOIN LATERAL rate_limit._last_time(u.queue, u.line, u.priority, u.names, u.keys, u.ready) AS l ON true
    CROSS JOIN LATERAL (
      SELECT
        greatest(clock, u.not_before) + u.max_age AS latest,
        greatest(
          u.not_before, l.run_at, CASE WHEN job_weights IS NULL THEN u.ready + (random() * u.jitter)::bigint ELSE clock END
        ) AS slot
    ) AS s
  ) AS o;

  IF array_remove(job_run_ats, NULL) <> '{}' AND NOT only_estimate THEN
    job_ids := rate_limit._write_jobs(
      queue_name, bucket_names, bucket_keys, item_buckets, item_counts, job_sizes, last_items, job_keys, job_payloads,
      job_priorities, job_unique_ids, job_jitters, job_not_befores, job_max_attempts, job_outcomes, job_run_ats, clock,
      job_slot_sizes, slot_names, slot_keys, slot_counts, job_max_ages, job_weights);
    PERFORM rate_limit._await_turns(queue_name, job_keys, job_run_ats) WHERE job_weights IS NOT NULL;
    PERFORM rate_limit._ring(queue_name, (SELECT min(r) FROM unnest(job_run_ats) AS r));
  END IF;
  IF array_remove(job_unique_ids, NULL) <> '{}' OR 'late' = ANY (job_outcomes) THEN
    -- Jobs that were not written, because another transaction has written one with their id since, or because they would be too
    -- old: return the tokens.
    FOR other IN
      SELECT u.nth::integer AS nth, u.size, u.last_item - u.size + 1 AS first_item, u.last_item
      FROM unnest(job_ids, job_outcomes, job_sizes, last_items) WITH ORDINALITY AS u (id, outcome, size, last_item, nth)
      WHERE u.outcome = 'late' OR u.id IS NULL AND u.outcome = 'scheduled' AND NOT only_estimate
      ORDER BY u.nth
    LOOP
      job_outcomes[other.nth] := CASE job_outcomes[other.nth] WHEN 'late' THEN 'denied' ELSE 'duplicate' END;
      PERFORM rate_limit._decide(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
        limit_shards, bucket_names, bucket_keys, item_buckets[other.first_item:other.last_item],
        item_limits[other.first_item:other.last_item], item_counts[other.first_item:other.last_item], ARRAY['credit'], NULL,
        ARRAY[other.size], NULL, NULL)
      WHERE other.size > 0 AND NOT only_estimate AND job_weights IS NULL;
    END LOOP;
    IF job_max_ages IS NOT NULL AND job_weights IS NULL THEN -- There is one job.
      item_refused := array_fill('denied' = ANY (job_outcomes), ARRAY[cardinality(item_counts)]);
    END IF;
  END IF;
  IF 'duplicate' = ANY (job_outcomes) THEN
    SELECT
      e.job_outcomes, e.job_ids, e.job_run_ats, e.job_waits, e.line_keys, e.line_priorities, e.job_states
    INTO job_outcomes, job_ids, job_run_ats, job_waits, line_keys, line_priorities, job_states
    FROM rate_limit._existing_jobs(
      queue_name, job_unique_ids, clock, job_outcomes, job_ids, job_run_ats, job_waits, line_keys, line_priorities
    ) AS e;
  END IF;

  IF job_weights IS NULL AND EXISTS (SELECT FROM rate_limit.groups AS g WHERE g.queue = queue_name AND g.has_line) THEN
    FOR other IN
      SELECT u.nth::integer AS nth, u.last_item - u.size + 1 AS first_item, u.last_item
      FROM unnest((SELECT line_keys), job_run_ats, job_sizes, last_items) WITH ORDINALITY AS u (key, run_at, size, last_item, nth)
      JOIN rate_limit.groups AS g ON g.queue = queue_name AND g.key = u.key AND g.has_line
      WHERE u.run_at IS NOT NULL
      ORDER BY u.nth
    LOOP
      job_run_ats[other.nth] := rate_limit._in_line(
        queue_name, line_keys[other.nth], job_ids[other.nth], job_run_ats[other.nth], line_priorities[other.nth],
        ARRAY(SELECT bucket_names[b] FROM unnest(item_buckets[other.first_item:other.last_item]) AS b),
        ARRAY(SELECT bucket_keys[b] FROM unnest(item_buckets[other.first_item:other.last_item]) AS b),
        item_counts[other.first_item:other.last_item], item_limits[other.first_item:other.last_item], limit_kinds,
        limit_rates, limit_periods, limit_capacities, limit_starts);
      job_waits[other.nth] := greatest(job_run_ats[other.nth] - clock, 0);
    END LOOP;
  END IF;
END
$function$;
