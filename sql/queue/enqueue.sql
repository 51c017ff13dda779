-- Takes the reservations of jobs, and writes the jobs: both or neither, in the caller's transaction.
--
--   limit_*, bucket_*, item_*  as for rate_limit_decide
--   job_sizes        the number of items of each job
--   job_keys         the group of each job
--   job_payloads     JSON
--   job_unique_ids   a second job of that id in the queue is the first one, until that is pruned; NULL: any number
--   job_jitters      run_at is spread over so many microseconds after the tokens are there
--   job_not_befores  run_at is not before this time; NULL: as soon as the tokens are there
--   only_estimate    takes nothing and writes nothing
--   results          job_outcomes: scheduled, duplicate (of job_ids; nothing was taken), refused (by the limits in
--                    item_refused; job_waits says after which time it would be let in) or past (the time asked for has
--                    gone by). job_run_ats: when it will run; job_waits: the microseconds until then. job_aheads, only
--                    of an estimate: how many jobs of the group wait already.
CREATE OR REPLACE FUNCTION public.rate_limit_enqueue(
  queue_name text,
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  limit_shards integer[],
  bucket_names text[],
  bucket_keys text[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  job_sizes integer[],
  job_keys text[],
  job_payloads text[],
  job_priorities integer[],
  job_unique_ids text[],
  job_jitters bigint[],
  job_not_befores bigint[],
  job_max_attempts integer[],
  only_estimate boolean,
  OUT job_outcomes text[],
  OUT job_ids bigint[],
  OUT job_run_ats bigint[],
  OUT job_waits bigint[],
  OUT job_aheads bigint[],
  OUT item_refused boolean[],
  OUT item_values double precision[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
DECLARE
  jobs CONSTANT integer := cardinality(job_keys);
  has_unique CONSTANT boolean := array_remove(job_unique_ids, NULL) <> '{}';
  -- A bucket for each job and a job for each bucket: said by NULL below, which is quicker.
  is_plain CONSTANT boolean := cardinality(bucket_names) = jobs AND cardinality(item_buckets) = jobs;
  is_looked_at boolean := false; -- some are only checked
  is_behind boolean; -- some group of the queue has a line
  ops text[] := array_fill(CASE WHEN only_estimate THEN 'check' ELSE 'limit' END, ARRAY[jobs]);
  clock bigint := public.rate_limit_clock();
  admitted integer[];
  waits bigint[];
  taken double precision[];
  first_items integer[];
  slots bigint[]; -- when the tokens are there
  new_ids bigint[];
  new_unique_ids text[];
  inserted integer := 0;
  item integer := 1;
  place integer;
  found_id bigint;
  found_run_at bigint;
  line_key text; -- the group of the line in which the job waits
  line_priority integer;
  line_lag bigint;
  line_held_until bigint;
  first_at bigint;
BEGIN
  IF NOT coalesce(
    jobs = ALL (ARRAY[
      cardinality(job_sizes), cardinality(job_payloads), cardinality(job_priorities), cardinality(job_unique_ids),
      cardinality(job_jitters), cardinality(job_not_befores), cardinality(job_max_attempts)
    ]), false)
  THEN
    RAISE EXCEPTION 'the arrays for % jobs differ in length', jobs
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element for each job.';
  END IF;

  -- What is there already, or can not be, takes no tokens: it is only checked.
  FOR nth IN 1 .. jobs LOOP
    first_items[nth] := item;
    item := item + job_sizes[nth];
    IF job_not_befores[nth] < clock - 1000000 THEN -- The client's clock may be a little behind.
      job_outcomes[nth] := 'past';
      ops[nth] := 'check';
      is_looked_at := true;
    ELSIF job_unique_ids[nth] IS NOT NULL AND (
      job_unique_ids[nth] = ANY (job_unique_ids[:nth - 1])
      OR EXISTS (
        SELECT
        FROM public.rate_limit_jobs AS j
        WHERE j.queue = queue_name AND j.unique_id = job_unique_ids[nth]
      ))
    THEN
      job_outcomes[nth] := 'duplicate';
      ops[nth] := 'check';
      is_looked_at := true;
    END IF;
  END LOOP;

  IF jobs = 1 AND is_plain AND limit_kinds[1] = 'token_bucket' AND coalesce(limit_shards[1], 1) = 1
    AND NOT only_estimate AND NOT is_looked_at
  THEN -- One job with one limit, the most usual: there is a shorter way for it.
    taken := public.rate_limit_take(
      bucket_names[1], bucket_keys[1], limit_rates[1], limit_periods[1], coalesce(limit_capacities[1], limit_rates[1]),
      item_counts[1], 1, 1, true, limit_max_reserved[1]);
    admitted[1] := taken[1];
    waits[1] := taken[2];
    item_refused[1] := taken[1] = 0;
    item_values[1] := taken[3];
  ELSE
    SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values
    INTO admitted, waits, item_refused, item_values
    FROM public.rate_limit_decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
      limit_shards, bucket_names, bucket_keys, CASE WHEN NOT is_plain THEN item_buckets END, item_limits, item_counts,
      CASE WHEN only_estimate OR is_looked_at THEN ops END, array_fill(true, ARRAY[jobs]),
      CASE WHEN NOT is_plain THEN job_sizes END, NULL, NULL
    ) AS d;
  END IF;

  clock := public.rate_limit_clock(); -- After the locks, and not before the moment that the waits count from.
  FOR nth IN 1 .. jobs LOOP
    job_waits[nth] := waits[nth];
    slots[nth] := greatest(
      clock + coalesce(waits[nth], 0) + (random() * job_jitters[nth])::bigint, job_not_befores[nth]);
    IF job_outcomes[nth] IS NULL THEN
      job_outcomes[nth] := CASE
        WHEN coalesce(admitted[nth], 1) = 1 THEN 'scheduled'
        -- It may have waited for the very one of its id, and for the last tokens.
        WHEN job_unique_ids[nth] IS NOT NULL AND EXISTS (
          SELECT
          FROM public.rate_limit_jobs AS j
          WHERE j.queue = queue_name AND j.unique_id = job_unique_ids[nth]
        )
        THEN 'duplicate'
        ELSE 'refused'
      END;
    END IF;
  END LOOP;

  IF NOT only_estimate AND 'scheduled' = ANY (job_outcomes) THEN
    WITH written AS (
      INSERT INTO public.rate_limit_jobs (
        queue, key, priority, run_at, not_before, payload, unique_id, limit_names, limit_keys, counts, max_attempts,
        enqueued_at
      )
      SELECT
        queue_name, u.key, u.priority, u.slot, u.not_before, u.payload::jsonb, u.unique_id,
        CASE
          WHEN u.size = 1 THEN ARRAY[bucket_names[item_buckets[u.first_item]]]
          ELSE ARRAY(
            SELECT bucket_names[item_buckets[n]]
            FROM generate_series(u.first_item, u.first_item + u.size - 1) AS n
            ORDER BY n)
        END,
        CASE
          WHEN u.size = 1 THEN ARRAY[bucket_keys[item_buckets[u.first_item]]]
          ELSE ARRAY(
            SELECT bucket_keys[item_buckets[n]]
            FROM generate_series(u.first_item, u.first_item + u.size - 1) AS n
            ORDER BY n)
        END,
        item_counts[u.first_item:u.first_item + u.size - 1],
        u.max_attempts, clock
      FROM unnest(
        job_keys, job_priorities, slots, job_not_befores, job_payloads, job_unique_ids, job_max_attempts, first_items,
        job_sizes, job_outcomes
      ) WITH ORDINALITY AS u (
        key, priority, slot, not_before, payload, unique_id, max_attempts, first_item, size, outcome, nth
      )
      WHERE u.outcome = 'scheduled'
      ORDER BY u.nth
      ON CONFLICT DO NOTHING
      RETURNING id, unique_id
    )
    SELECT array_agg(w.id), array_agg(w.unique_id) INTO new_ids, new_unique_ids FROM written AS w;
    -- In the order of the jobs, without those that somebody else has written since they were looked for.
    FOR nth IN 1 .. jobs LOOP
      CONTINUE WHEN job_outcomes[nth] <> 'scheduled';
      IF has_unique AND new_unique_ids[inserted + 1] IS DISTINCT FROM job_unique_ids[nth] THEN
        job_outcomes[nth] := 'duplicate';
        PERFORM public.rate_limit_decide(
          limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts,
          limit_resolutions, limit_shards, bucket_names, bucket_keys, i.buckets, i.limits, i.counts,
          ARRAY['credit'], NULL, ARRAY[job_sizes[nth]], NULL, NULL)
        FROM (
          SELECT
            array_agg(item_buckets[n] ORDER BY n) AS buckets,
            array_agg(item_limits[n] ORDER BY n) AS limits,
            array_agg(item_counts[n] ORDER BY n) AS counts
          FROM generate_series(first_items[nth], first_items[nth] + job_sizes[nth] - 1) AS n
        ) AS i;
      ELSE
        inserted := inserted + 1;
        job_ids[nth] := new_ids[inserted];
      END IF;
    END LOOP;
  END IF;

  is_behind := EXISTS (
    SELECT
    FROM public.rate_limit_groups AS g
    WHERE g.queue = queue_name AND g.has_line
  );
  FOR nth IN 1 .. jobs LOOP
    IF only_estimate THEN
      job_aheads[nth] := (
        SELECT count(*)
        FROM public.rate_limit_jobs AS j
        WHERE j.queue = queue_name AND j.key = job_keys[nth] AND j.state IN ('scheduled', 'available')
      );
    END IF;
    IF job_outcomes[nth] = 'duplicate' THEN
      SELECT j.id, j.run_at, j.key, j.priority INTO found_id, found_run_at, line_key, line_priority
      FROM public.rate_limit_jobs AS j
      WHERE j.queue = queue_name AND j.unique_id = job_unique_ids[nth];
      IF FOUND THEN
        job_ids[nth] := found_id;
        job_run_ats[nth] := found_run_at;
      ELSE -- The first one of that id, in this same call, was not let in; nor is this one.
        place := array_position(job_unique_ids, job_unique_ids[nth]);
        job_outcomes[nth] := job_outcomes[place];
        job_waits[nth] := job_waits[place];
        CONTINUE;
      END IF;
    ELSIF job_outcomes[nth] = 'scheduled' THEN
      job_run_ats[nth] := greatest(slots[nth], clock);
      line_key := job_keys[nth];
      line_priority := job_priorities[nth];
      IF NOT only_estimate THEN
        first_at := least(first_at, slots[nth]);
      END IF;
    ELSE
      CONTINUE;
    END IF;
    IF is_behind THEN
      SELECT g.lag, g.held_until INTO line_lag, line_held_until
      FROM public.rate_limit_groups AS g
      WHERE g.queue = queue_name AND g.key = line_key AND g.has_line;
      IF line_held_until > 0 THEN
        job_run_ats[nth] := public.rate_limit_in_line(
          queue_name, line_key, job_ids[nth], job_run_ats[nth], line_priority, i.names, i.keys, i.counts, i.limits,
          limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts)
        FROM (
          SELECT
            array_agg(bucket_names[item_buckets[n]] ORDER BY n) AS names,
            array_agg(bucket_keys[item_buckets[n]] ORDER BY n) AS keys,
            array_agg(item_counts[n] ORDER BY n) AS counts,
            array_agg(item_limits[n] ORDER BY n) AS limits
          FROM generate_series(first_items[nth], first_items[nth] + job_sizes[nth] - 1) AS n
        ) AS i;
      ELSE
        job_run_ats[nth] := job_run_ats[nth] + coalesce(line_lag, 0);
      END IF;
    END IF;
    job_waits[nth] := greatest(job_run_ats[nth] - clock, 0);
  END LOOP;
  IF first_at IS NOT NULL THEN
    PERFORM public.rate_limit_ring(queue_name, first_at);
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_enqueue IS 'Reserves the tokens of jobs and writes the jobs down with their times.';

-- Returns when a job of a group that a handler held starts. Its reserved tokens are available at `slot`.
-- `job_id` is NULL for a job that is not written yet.
--
-- If the limits hold up the line, the job is as late as the first job of the line was at the last claim. If a handler's
-- Finish::Wait holds the group, the line starts at the end of that wait, and then as fast as the limits let jobs start: the
-- buckets of what was started are checked at that time for the tokens of all jobs before this one. (Jobs of other groups that
-- share a bucket are not counted. Behind more than 1,000 jobs, the job is as late as the first.)
CREATE OR REPLACE FUNCTION public.rate_limit_in_line(
  queue_name text,
  job_key text,
  job_id bigint,
  slot bigint,
  job_priority integer,
  names text[],
  bucket_keys text[],
  counts double precision[],
  item_limits integer[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[]
)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  most CONSTANT integer := 1000;
  job_group record;
  first_at bigint;
  ahead integer;
  totals double precision[];
  ready_at bigint;
  limit_names text[];
  all_kinds text[] := limit_kinds;
  all_rates double precision[] := limit_rates;
  all_periods bigint[] := limit_periods;
  all_capacities double precision[] := limit_capacities;
  all_starts bigint[] := limit_starts;
  asked_limits integer[];
  nth_limit integer;
  limit_kind text;
  capacity double precision;
  full_capacity double precision;
  phase bigint;
  waits bigint[];
BEGIN
  SELECT g.not_before, g.held_until, g.lag INTO job_group
  FROM public.rate_limit_groups AS g
  WHERE g.queue = queue_name AND g.key = job_key AND g.has_line;
  IF NOT FOUND THEN
    RETURN slot;
  END IF;
  WITH before AS (
    (
      SELECT j.run_at, j.limit_names, j.limit_keys, j.counts
      FROM public.rate_limit_jobs AS j
      WHERE j.queue = queue_name AND j.key = job_key AND j.state = 'available' AND j.priority >= job_priority
        AND (j.run_at < slot OR j.run_at = slot AND j.id < coalesce(job_id, 9223372036854775807))
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT most + 1
    )
    UNION ALL
    (
      SELECT j.run_at, j.limit_names, j.limit_keys, j.counts
      FROM public.rate_limit_jobs AS j
      WHERE j.queue = queue_name AND j.key = job_key AND j.state = 'scheduled' AND j.priority >= job_priority
        AND (j.run_at < slot OR j.run_at = slot AND j.id < coalesce(job_id, 9223372036854775807))
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT most + 1
    )
  )
  SELECT
    (SELECT min(b.run_at) FROM before AS b),
    (SELECT count(*) FROM before AS b),
    ARRAY(
      SELECT i.count + coalesce((
        SELECT sum(u.count)
        FROM before AS b
        CROSS JOIN LATERAL unnest(b.limit_names, b.limit_keys, b.counts) AS u (name, key, count)
        WHERE u.name = i.name AND u.key = i.key
      ), 0)
      FROM unnest(names, bucket_keys, counts) WITH ORDINALITY AS i (name, key, count, nth)
      ORDER BY i.nth)
  INTO first_at, ahead, totals;
  IF ahead > most OR job_group.held_until <= least(first_at, slot) THEN
    RETURN slot + job_group.lag;
  END IF;
  FOR i IN 1 .. cardinality(names) LOOP
    limit_names[item_limits[i]] := names[i];
    --@include started_limit
    asked_limits[i] := nth_limit;
  END LOOP;
  ready_at := greatest(job_group.not_before, job_group.held_until, public.rate_limit_clock());
  SELECT d.call_waits INTO waits
  FROM public.rate_limit_decide(
    all_kinds, all_rates, all_periods, all_capacities, NULL, all_starts, NULL, NULL,
    ARRAY(SELECT n || '/started' FROM unnest(names) WITH ORDINALITY AS u (n, nth) ORDER BY u.nth), bucket_keys, NULL,
    asked_limits, totals, ARRAY['check'], ARRAY[true], ARRAY[cardinality(names)], NULL, ARRAY[ready_at]
  ) AS d;
  RETURN greatest(slot, ready_at + coalesce(waits[1], 0));
END
$function$;
COMMENT ON FUNCTION public.rate_limit_in_line IS 'When jobs of a group that was held can start, one after the other.';

-- How far the line of a group is behind, in microseconds. Kept for one release beside rate_limit_in_line.
CREATE OR REPLACE FUNCTION public.rate_limit_lag(queue_name text, job_key text)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $function$
BEGIN
  RETURN coalesce((
    SELECT g.lag
    FROM public.rate_limit_groups AS g
    WHERE g.queue = queue_name AND g.key = job_key AND g.has_line
  ), 0);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_lag IS
  'Returns how far the line of a group is behind the times of its jobs, in microseconds.';
