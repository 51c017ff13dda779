-- Enqueues any number of jobs, or estimates when they would run: see _enqueue.
CREATE OR REPLACE FUNCTION rate_limit._enqueue_jobs(
  queue_name text, limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], job_sizes integer[], job_keys text[], job_payloads text[], job_priorities integer[],
  job_unique_ids text[], job_jitters bigint[], job_not_befores bigint[], job_max_attempts integer[], only_estimate boolean,
  OUT job_outcomes text[], OUT job_ids bigint[], OUT job_run_ats bigint[], OUT job_waits bigint[], OUT job_aheads bigint[],
  OUT item_refused boolean[], OUT item_values double precision[], OUT job_states text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  jobs CONSTANT integer := cardinality(job_keys);
  -- With one bucket for each job and one job for each bucket, _decide gets NULL instead, which is faster.
  is_plain CONSTANT boolean := cardinality(bucket_names) = jobs AND cardinality(item_buckets) = jobs AND 1 = ALL (job_sizes);
  clock bigint := rate_limit._clock();
  ops text[]; -- NULL: all jobs take tokens
  admitted integer[];
  waits bigint[];
  slots bigint[]; -- when the tokens are available
  first_at bigint; -- the first of these times
  line_keys text[] := job_keys; -- the group of each job, or of the existing job of its id
  line_priorities integer[] := job_priorities;
  is_behind boolean; -- whether a group of the queue has a line
  last_items integer[]; -- the last item of each job
  other record;
  place integer;
BEGIN
  -- A job that exists already, or with a not_before in the past, takes no tokens: it is only checked.
  IF array_remove(job_unique_ids, NULL) <> '{}' OR array_remove(job_not_befores, NULL) <> '{}' THEN
    SELECT
      array_agg(u.outcome ORDER BY u.nth),
      array_agg(CASE WHEN u.outcome IS NULL THEN 'limit' ELSE 'check' END ORDER BY u.nth)
    INTO job_outcomes, ops
    FROM (
      SELECT
        u.nth,
        CASE
          WHEN u.not_before < clock - 1000000 THEN 'past' -- The client's clock may be a little behind.
          WHEN u.unique_id IS NOT NULL AND (
            row_number() OVER (PARTITION BY u.unique_id ORDER BY u.nth) > 1
            OR EXISTS (
              SELECT
              FROM rate_limit.jobs AS j
              WHERE j.queue = queue_name AND j.unique_id = u.unique_id AND j.state NOT IN ('dead', 'cancelled')
            ))
          THEN 'duplicate'
        END AS outcome
      FROM unnest(job_unique_ids, job_not_befores) WITH ORDINALITY AS u (unique_id, not_before, nth)
    ) AS u;
  END IF;
  IF only_estimate THEN
    ops := array_fill('check'::text, ARRAY[jobs]);
  END IF;

  item_values := '{}';
  IF item_counts <> '{}' THEN
    SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values
    INTO admitted, waits, item_refused, item_values
    FROM rate_limit._decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
      limit_shards, bucket_names, bucket_keys, CASE WHEN NOT is_plain THEN item_buckets END, item_limits, item_counts, ops,
      array_fill(true, ARRAY[jobs]), CASE WHEN NOT is_plain THEN job_sizes END, NULL, NULL
    ) AS d;
  END IF;

  clock := rate_limit._clock(); -- After the locks, and not before the time at which the waits start.
  SELECT
    array_agg(o.outcome ORDER BY o.nth),
    array_agg(o.slot ORDER BY o.nth),
    array_agg(o.last_item ORDER BY o.nth),
    array_agg(CASE WHEN o.outcome = 'scheduled' THEN greatest(o.slot, clock) END ORDER BY o.nth),
    array_agg(CASE WHEN o.outcome = 'scheduled' THEN greatest(o.slot - clock, 0) ELSE o.wait END ORDER BY o.nth),
    min(o.slot) FILTER (WHERE o.outcome = 'scheduled')
  INTO job_outcomes, slots, last_items, job_run_ats, job_waits, first_at
  FROM (
    SELECT
      u.nth, u.wait, sum(u.size) OVER (ORDER BY u.nth) AS last_item,
      greatest(clock + coalesce(u.wait, 0) + (random() * u.jitter)::bigint, u.not_before) AS slot,
      CASE
        WHEN u.outcome IS NOT NULL THEN u.outcome
        WHEN coalesce(u.admitted, 1) = 1 THEN 'scheduled'
        -- The call may have waited for the job with the same id, which took the last tokens.
        WHEN u.unique_id IS NOT NULL AND EXISTS (
          SELECT
          FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.unique_id = u.unique_id AND j.state NOT IN ('dead', 'cancelled')
        )
        THEN 'duplicate'
        ELSE 'denied'
      END AS outcome
    FROM unnest(job_sizes, job_outcomes, admitted, waits, job_unique_ids, job_jitters, job_not_befores) WITH ORDINALITY
      AS u (size, outcome, admitted, wait, unique_id, jitter, not_before, nth)
  ) AS o;

  IF first_at IS NOT NULL AND NOT only_estimate THEN
    job_ids := rate_limit._write_jobs(
      queue_name, bucket_names, bucket_keys, item_buckets, item_counts, job_sizes, last_items, job_keys, job_payloads,
      job_priorities, job_unique_ids, job_not_befores, job_max_attempts, job_outcomes, slots, clock);
  END IF;
  IF array_remove(job_unique_ids, NULL) <> '{}' THEN
    job_states := array_fill(NULL::text, ARRAY[jobs]);
    FOR nth IN 1 .. jobs LOOP
      IF job_outcomes[nth] = 'scheduled' AND job_ids[nth] IS NULL AND NOT only_estimate THEN
        -- Another transaction has written a job with this id since: return the tokens.
        job_outcomes[nth] := 'duplicate';
        place := last_items[nth] - job_sizes[nth] + 1;
        PERFORM rate_limit._decide(
          limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
          limit_shards, bucket_names, bucket_keys, item_buckets[place:last_items[nth]], item_limits[place:last_items[nth]],
          item_counts[place:last_items[nth]], ARRAY['credit'], NULL, ARRAY[job_sizes[nth]], NULL, NULL)
        WHERE job_sizes[nth] > 0;
      END IF;
      CONTINUE WHEN job_outcomes[nth] <> 'duplicate';
      SELECT j.id, j.run_at, j.key, j.priority, j.state INTO other
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.unique_id = job_unique_ids[nth] AND j.state NOT IN ('dead', 'cancelled');
      place := array_position(job_unique_ids, job_unique_ids[nth]);
      IF FOUND THEN
        job_ids[nth] := other.id;
        job_run_ats[nth] := other.run_at;
        job_waits[nth] := greatest(other.run_at - clock, 0);
        job_states[nth] := other.state;
        line_keys[nth] := CASE WHEN other.state IN ('scheduled', 'available') THEN other.key END;
        line_priorities[nth] := other.priority;
      ELSIF place < nth THEN -- The first job with this id is in the same call, and was not scheduled. So this one is not, either.
        job_outcomes[nth] := job_outcomes[place];
        job_waits[nth] := job_waits[place];
      ELSE
        RAISE EXCEPTION 'the job that had the unique id of job % of this call has just ended', nth
          USING ERRCODE = 'serialization_failure', HINT = 'Enqueue again.';
      END IF;
    END LOOP;
  END IF;

  is_behind := EXISTS (
    SELECT
    FROM rate_limit.groups AS g
    WHERE g.queue = queue_name AND g.has_line
  );
  IF is_behind THEN
    FOR other IN
      SELECT u.nth::integer AS nth, u.last_item - u.size + 1 AS first_item, u.last_item
      FROM unnest(line_keys, job_run_ats, job_sizes, last_items) WITH ORDINALITY AS u (key, run_at, size, last_item, nth)
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
  IF only_estimate THEN
    job_aheads := ARRAY(
      SELECT (
        SELECT count(*)
        FROM rate_limit.jobs AS j
        WHERE j.queue = queue_name AND j.key = u.key AND j.state IN ('scheduled', 'available')
      )
      FROM unnest(job_keys) WITH ORDINALITY AS u (key, nth)
      ORDER BY u.nth
    );
  ELSIF first_at IS NOT NULL THEN
    PERFORM rate_limit._ring(queue_name, first_at);
  END IF;
END
$function$;
