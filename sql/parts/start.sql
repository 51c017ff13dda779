-- Locks the groups, and starts of their jobs what the limits allow.
INSERT INTO public.rate_limit_groups (queue, key)
SELECT queue_name, k
FROM unnest(keys) AS k
WHERE NOT EXISTS (
  SELECT
  FROM public.rate_limit_groups AS g
  WHERE g.queue = queue_name AND g.key = k
)
ORDER BY k
ON CONFLICT DO NOTHING;
FOR group_row IN
  SELECT g.key, g.not_before, g.has_line
  FROM public.rate_limit_groups AS g
  WHERE g.queue = queue_name AND g.key = ANY (keys)
  ORDER BY g.key
  FOR UPDATE SKIP LOCKED
LOOP
  IF group_row.not_before > horizon THEN
    shut_keys := shut_keys || group_row.key;
  ELSE
    open_keys := open_keys || group_row.key;
    open_floors := open_floors || group_row.not_before;
  END IF;
END LOOP;

-- What those before us have left of them: a new statement sees it.
SELECT coalesce(array_agg(h.id), '{}') INTO line_ids
FROM unnest(open_keys) AS k
CROSS JOIN LATERAL (
  SELECT j.id
  FROM public.rate_limit_jobs AS j
  WHERE j.queue = queue_name AND j.key = k AND j.state = 'available'
    AND j.limit_names <@ rate_limit_claim.limit_names
    -- Where not all that are due were seen, one of a higher priority may be among the others.
    AND (cardinality(due_ids) < most OR j.priority >= level)
  ORDER BY j.priority DESC, j.run_at, j.id
  LIMIT most
) AS h;
FOR job IN
  SELECT j.id, j.key, j.run_at, j.paid_until, j.limit_names, j.limit_keys, j.counts
  FROM public.rate_limit_jobs AS j
  WHERE j.id = ANY (due_ids || line_ids) AND j.state IN ('scheduled', 'available') AND j.key = ANY (open_keys)
    AND j.run_at <= horizon
  ORDER BY greatest(j.run_at, clock), j.priority DESC, j.run_at, j.id
  LIMIT most
  FOR NO KEY UPDATE SKIP LOCKED
LOOP
  jobs := jobs + 1;
  ids[jobs] := job.id;
  run_ats[jobs] := job.run_at;
  place := array_position(open_keys, job.key);
  job_ats[jobs] := greatest(job.run_at, clock, open_floors[place], job.paid_until);
  job_is_paid[jobs] := job.paid_until IS NOT NULL;
  job_in_debt[jobs] := false;
  job_groups[jobs] := place;
  IF group_lasts[place] IS NULL THEN
    group_nexts[place] := jobs;
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

LOOP
  --@include round
END LOOP;
clock := public.rate_limit_clock();
FOR i IN 1 .. cardinality(started_ats) LOOP
  started_ats[i] := greatest(started_ats[i], clock); -- Now, or later.
END LOOP;

UPDATE public.rate_limit_jobs AS j
SET paid_until = p.at
FROM unnest(paid_ids, paid_ats) AS p (id, at)
WHERE j.id = p.id;

-- Who cannot start stands in line, and is not looked at again before his group is ready.
UPDATE public.rate_limit_jobs AS j
SET state = 'available'
WHERE j.id = ANY (due_ids) AND j.id <> ALL (started_ids) AND j.state = 'scheduled'
  AND j.key = ANY (shut_keys || stopped_keys);
GET DIAGNOSTICS parked = ROW_COUNT;
UPDATE public.rate_limit_groups AS g
SET has_line = true, not_before = s.at, lag = greatest(s.at - s.run_at, 0)
FROM unnest(stopped_keys, stopped_ats, stopped_run_ats) AS s (key, at, run_at)
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

--@ part round: asks the buckets of what was started for the next jobs of all groups
asked_jobs := '{}';
asked_times := '{}';
asked_ats := '{}';
large_jobs := '{}';
asked_debts := '{}';
asked_buckets := '{}';
asked_names := '{}';
asked_keys := '{}';
item_buckets := '{}';
item_limits := '{}';
item_counts := '{}';
sizes := '{}';
all_kinds := limit_kinds;
all_rates := limit_rates;
all_periods := limit_periods;
all_capacities := limit_capacities;
all_starts := limit_starts;
FOR g IN 1 .. cardinality(open_keys) LOOP
  nth := group_nexts[g];
  WHILE job_is_paid[nth] LOOP
    started_ids := started_ids || ids[nth];
    started_ats := started_ats || job_ats[nth];
    nth := next_jobs[nth];
    group_nexts[g] := nth;
  END LOOP;
  CONTINUE WHEN nth IS NULL;
  times := 1;
  place := CASE WHEN NOT job_in_debt[nth] THEN next_jobs[nth] END;
  is_large := false;
  -- A row of jobs that ask for the same is asked for at once.
  WHILE job_sizes[nth] = 1 AND job_sizes[place] = 1 AND NOT job_is_paid[place] AND job_ats[place] = job_ats[nth]
    AND names[job_firsts[place]] = names[job_firsts[nth]]
    AND bucket_keys[job_firsts[place]] = bucket_keys[job_firsts[nth]]
    AND counts[job_firsts[place]] = counts[job_firsts[nth]]
  LOOP
    times := times + 1;
    place := next_jobs[place];
  END LOOP;
  asked_jobs := asked_jobs || nth;
  asked_times := asked_times || times;
  asked_ats := asked_ats || job_ats[nth];
  sizes := sizes || job_sizes[nth];
  FOR i IN job_firsts[nth] .. job_firsts[nth] + job_sizes[nth] - 1 LOOP
    --@include started_limit
    nth_bucket := array_position(asked_buckets, length(names[i]) || ':' || names[i] || bucket_keys[i]);
    IF nth_bucket IS NULL THEN
      asked_buckets := asked_buckets || (length(names[i]) || ':' || names[i] || bucket_keys[i]);
      asked_names := asked_names || (names[i] || '/started');
      asked_keys := asked_keys || bucket_keys[i];
      nth_bucket := cardinality(asked_buckets);
    END IF;
    item_buckets := item_buckets || nth_bucket;
    item_limits := item_limits || nth_limit;
    item_counts := item_counts || counts[i];
  END LOOP;
  large_jobs := large_jobs || is_large;
  asked_debts := asked_debts || job_in_debt[nth];
END LOOP;
EXIT WHEN asked_jobs = '{}';

asked_items := item_buckets;
-- Said by NULL if it is as usual, which is quicker.
IF cardinality(item_buckets) = cardinality(asked_buckets) AND cardinality(item_buckets) = cardinality(asked_jobs) THEN
  item_buckets := NULL;
  sizes := NULL;
END IF;
IF clock >= ALL (asked_ats) THEN
  asked_ats := NULL; -- Now.
END IF;
SELECT d.call_admitted, d.call_waits INTO admitted, waits
FROM public.rate_limit_decide(
  all_kinds, all_rates, all_periods, all_capacities, NULL, all_starts, NULL, NULL, asked_names, asked_keys,
  item_buckets, item_limits, item_counts, NULL, CASE WHEN true = ANY (asked_debts) THEN asked_debts END, sizes,
  asked_times, asked_ats
) AS d;

IF asked_ats IS NOT NULL AND public.rate_limit_clock() - clock > 250000 THEN
  -- Somebody had a row for long: the moments that were asked for are no more.
  RAISE EXCEPTION 'could not claim jobs in time'
    USING ERRCODE = 'serialization_failure', HINT = 'Claim again.';
END IF;
-- A bucket may be ahead of the clock, by what others have claimed ahead. What is taken from it is taken then.
SELECT array_agg(r.ts ORDER BY a.nth) INTO bucket_ats
FROM unnest((SELECT asked_names), asked_keys) WITH ORDINALITY AS a (name, key, nth)
LEFT JOIN LATERAL (
  SELECT t.ts
  FROM public.rate_limits AS t
  WHERE t.name = a.name AND t.key = a.key AND t.shard = 0
  LIMIT 1
) AS r ON true;

place := 0; -- of the items
FOR i IN 1 .. cardinality(asked_jobs) LOOP
  ready_at := NULL;
  FOR n IN 1 .. job_sizes[asked_jobs[i]] LOOP
    place := place + 1;
    ready_at := greatest(ready_at, bucket_ats[asked_items[place]]);
  END LOOP;
  bucket_ats_of_jobs[i] := ready_at;
END LOOP;
FOR i IN 1 .. cardinality(asked_jobs) LOOP
  nth := asked_jobs[i];
  place := job_groups[nth];
  IF asked_debts[i] THEN -- Its tokens are taken: it starts when they are there, now or in a later claim.
    ready_at := greatest(coalesce(asked_ats[i], public.rate_limit_clock()) + coalesce(waits[i], 0), bucket_ats_of_jobs[i]);
    IF ready_at > horizon THEN
      paid_ids := paid_ids || ids[nth];
      paid_ats := paid_ats || ready_at;
      stopped_keys := stopped_keys || open_keys[place];
      stopped_ats := stopped_ats || ready_at;
      stopped_run_ats := stopped_run_ats || run_ats[nth];
      group_nexts[place] := NULL;
    ELSE
      started_ids := started_ids || ids[nth];
      started_ats := started_ats || ready_at;
      group_nexts[place] := next_jobs[nth];
    END IF;
    CONTINUE;
  END IF;
  FOR n IN 1 .. coalesce(admitted[i], asked_times[i]) LOOP
    started_ids := started_ids || ids[nth];
    started_ats := started_ats || greatest(job_ats[nth], bucket_ats_of_jobs[i]);
    nth := next_jobs[nth];
  END LOOP;
  group_nexts[place] := nth;
  CONTINUE WHEN coalesce(admitted[i], asked_times[i]) = asked_times[i];
  -- The next one can start at this time. Soon enough, or its group stops here.
  ready_at := coalesce(asked_ats[i], public.rate_limit_clock()) + waits[i];
  IF ready_at > horizon AND large_jobs[i] THEN
    -- Others would never let the bucket hold so much: it asks once more, and may owe for it.
    job_in_debt[nth] := true;
    CONTINUE;
  ELSIF ready_at > horizon THEN
    group_nexts[place] := NULL;
    stopped_keys := stopped_keys || open_keys[place];
    stopped_ats := stopped_ats || ready_at;
    stopped_run_ats := stopped_run_ats || run_ats[nth];
  END IF;
  WHILE nth IS NOT NULL LOOP
    job_ats[nth] := greatest(job_ats[nth], ready_at, bucket_ats_of_jobs[i]);
    nth := next_jobs[nth];
  END LOOP;
END LOOP;

--@ part started_limit: the limit that item i is started under
-- The bucket has to hold what one job asks for, and what one window grants, or some could never start on time.
nth_limit := array_position(limit_names, names[i]);
limit_kind := limit_kinds[nth_limit];
capacity := coalesce(limit_capacities[nth_limit], limit_rates[nth_limit]);
full_capacity := greatest(capacity, counts[i]);
is_large := is_large OR counts[i] > greatest(capacity, CASE WHEN limit_kind = 'fixed_window' THEN limit_rates[nth_limit] END);
phase := limit_starts[nth_limit];
IF limit_kind = 'fixed_window' THEN
  full_capacity := greatest(full_capacity, limit_rates[nth_limit]);
  IF phase IS NULL THEN -- That of the bucket that was reserved from, which has another name.
    phase := public.rate_limit_phase(names[i], bucket_keys[i]);
  END IF;
END IF;
IF full_capacity > capacity OR phase IS DISTINCT FROM limit_starts[nth_limit] THEN
  all_kinds := all_kinds || limit_kind;
  all_rates := all_rates || limit_rates[nth_limit];
  all_periods := all_periods || limit_periods[nth_limit];
  all_capacities := all_capacities || full_capacity;
  all_starts := all_starts || phase;
  nth_limit := cardinality(all_kinds);
END IF;
