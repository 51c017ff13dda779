-- Starts what the limits allow of the jobs of the groups that are locked.
-- What those before us have left of them: a new statement sees it.
SELECT coalesce(array_agg(h.id), '{}') INTO line_ids
FROM unnest(open_keys) AS k
CROSS JOIN LATERAL (
  SELECT j.id
  FROM public.rate_limit_jobs AS j
  WHERE j.queue = queue_name AND j.key = k AND j.state = 'available'
    AND j.limit_names <@ rate_limit_claim.limit_names
    -- Where not all that are due were seen, one of a higher priority may be among the others.
    AND (is_all_seen OR j.priority >= level)
  ORDER BY j.priority DESC, j.run_at, j.id
  LIMIT most
) AS h;
FOR job IN
  SELECT j.id, j.key, j.run_at, j.paid_until, j.paid_item, j.limit_names, j.limit_keys, j.counts
  FROM public.rate_limit_jobs AS j
  WHERE j.id = ANY (due_ids || front_ids || line_ids) AND j.state IN ('scheduled', 'available') AND j.key = ANY (open_keys)
    AND j.run_at <= horizon
  ORDER BY j.paid_until IS NULL, greatest(j.run_at, clock), j.priority DESC, j.run_at, j.id
  LIMIT most
  FOR NO KEY UPDATE SKIP LOCKED
LOOP
  place := array_position(open_keys, job.key);
  CONTINUE WHEN open_keys[place] = ANY (stopped_keys);
  jobs := jobs + 1;
  ids[jobs] := job.id;
  run_ats[jobs] := job.run_at;
  job_ats[jobs] := greatest(job.run_at, clock, open_floors[place], job.paid_until);
  job_groups[jobs] := place;
  IF job.paid_until > horizon THEN -- Somebody let the group look again before the moment of its job.
    nth := jobs;
    ready_at := job.paid_until;
    --@include stop
    CONTINUE;
  ELSIF job.paid_until IS NOT NULL THEN
    had_paid := had_paid || jobs;
    had_paid_untils := had_paid_untils || job.paid_until;
    had_paid_items := had_paid_items || job.paid_item;
  END IF;
  IF group_lasts[place] IS NULL THEN
    group_nexts[place] := jobs;
    is_contended := is_contended OR job.paid_until IS NOT NULL OR job.id = open_refused[place];
  ELSE
    next_jobs[group_lasts[place]] := jobs;
  END IF;
  group_lasts[place] := jobs;
  next_jobs[jobs] := NULL;
  job_firsts[jobs] := coalesce(cardinality(names), 0) + 1;
  job_sizes[jobs] := cardinality(job.limit_names);
  names := names || job.limit_names;
  bucket_keys := bucket_keys || job.limit_keys;
  counts := counts || job.counts;
END LOOP;

IF is_contended THEN
  --@include take_payments_back
END IF;

LOOP
  --@include round
END LOOP;
clock := public.rate_limit_clock();
FOR i IN 1 .. cardinality(started_ats) LOOP
  started_ats[i] := greatest(started_ats[i], clock); -- Now, or later.
END LOOP;

FOREACH nth IN ARRAY had_paid LOOP
  IF ids[nth] <> ALL (started_ids || paid_ids) THEN
    paid_ids := paid_ids || ids[nth];
    paid_ats := paid_ats || NULL::bigint;
    paid_items := paid_items || NULL::integer;
  END IF;
END LOOP;
IF paid_ids <> '{}' THEN
  UPDATE public.rate_limit_jobs AS j
  SET paid_until = p.at, paid_item = p.item
  FROM unnest(paid_ids, paid_ats, paid_items) AS p (id, at, item)
  WHERE j.id = p.id;
END IF;

-- Who cannot start stands in line, and is not looked at again before his group is ready.
UPDATE public.rate_limit_jobs AS j
SET state = 'available'
WHERE j.id = ANY (due_ids) AND j.id <> ALL (started_ids) AND j.state = 'scheduled'
  AND j.key = ANY (shut_keys || stopped_keys);
GET DIAGNOSTICS parked = ROW_COUNT;
UPDATE public.rate_limit_groups AS g
SET has_line = true, not_before = s.at, lag = greatest(s.at - s.run_at, 0), refused_job = s.id
FROM unnest(stopped_keys, stopped_ats, stopped_run_ats, stopped_ids) AS s (key, at, run_at, id)
WHERE g.queue = queue_name AND g.key = s.key;
UPDATE public.rate_limit_groups AS g
SET has_line = true
WHERE g.queue = queue_name AND g.key = ANY (shut_keys) AND NOT g.has_line;
UPDATE public.rate_limit_groups AS g
SET has_line = false, lag = 0
WHERE g.queue = queue_name AND g.key = ANY (open_keys) AND g.key <> ALL (stopped_keys) AND g.has_line
  AND NOT EXISTS (
    SELECT
    FROM public.rate_limit_jobs AS j
    WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available' AND j.id <> ALL (started_ids)
  );

--@ part take_payments_back: locks the buckets, and lets jobs whose moment has come ask for what they have paid
-- They are asked and paid from in several statements, so in one order from the beginning.
SELECT array_agg(l.name), array_agg(l.key), array_agg(l.ts) INTO asked_names, asked_keys, bucket_ats
FROM (
  SELECT a.name, a.key, t.ts
  FROM (SELECT DISTINCT u.name || '/started' AS name, u.key FROM unnest(names, bucket_keys) AS u (name, key)) AS a
  JOIN public.rate_limits AS t ON t.name = ANY (ARRAY[a.name]) AND t.key = a.key AND t.shard = 0
  ORDER BY a.name COLLATE "C", a.key COLLATE "C"
  FOR NO KEY UPDATE OF t
) AS l;
IF had_paid <> '{}' THEN
  PERFORM public.rate_limit_correct_started(
    array_agg(p.name), array_agg(p.key), array_agg(p.count), array_agg(- p.count), array_agg(p.at), limit_names, limit_kinds,
    limit_rates, limit_periods, limit_capacities, limit_starts)
  FROM (
    SELECT names[i.item] AS name, bucket_keys[i.item] AS key, counts[i.item] AS count, job_ats[h.nth] AS at
    FROM unnest(had_paid, had_paid_untils, had_paid_items) AS h (nth, until, item)
    CROSS JOIN LATERAL (SELECT job_firsts[h.nth] + h.item - 1 AS item) AS i
    -- What was taken since has been taken from those tokens, too.
    WHERE EXISTS (
      SELECT
      FROM unnest(asked_names, asked_keys, bucket_ats) AS b (name, key, ts)
      WHERE b.name = names[i.item] || '/started' AND b.key = bucket_keys[i.item] AND b.ts < h.until
    )
  ) AS p
  HAVING count(*) > 0;
END IF;
