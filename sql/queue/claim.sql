-- Starts due jobs of a queue: never before their run_at, and never more of a group than its limits allow by the time at
-- which they start. Runs in a READ COMMITTED transaction of its own.
--
-- A reservation says when a job may run, if everything goes well. Where workers are late, a job failed or its worker died,
-- jobs start at other times than those; so each start also takes its tokens, from a second bucket of the same limit, whose
-- name ends in '/started'. A job that is on time finds them there. One that does not stands in the line of its group
-- (available) until they are, and the group with it: what is in line starts in order, and is not looked at again before.
--
-- Groups may share such a bucket. So that no job starves behind others, a job that is refused a second time pays ahead: it
-- takes its tokens, and the bucket owes them until the job's moment (paid_until). Only one job pays ahead from a bucket: a
-- bucket that owes refuses all others, and their groups look again right after that moment. At its moment the job gets its
-- payment back and asks again, before all others. So a payment never lets more start than the rate, however late the worker
-- is; and if anything was taken from the bucket since that moment, the payment has expired. A job of several limits pays for
-- the one that it waits for longest: of the others it keeps nothing from anybody.
--
-- The claim is one statement that commits by itself, with an answer that is small enough for any buffer: a worker that is
-- stopped or cut off keeps no row locked. Its payloads are read afterwards (rate_limit_claimed_jobs).
--
--   worker    of this name; it is asleep afterwards, for `sleep` microseconds, if it got fewer than `most`
--   most      the most jobs to start
--   ahead     jobs that are to start within so many microseconds are claimed, too; the worker waits for their moments, and so
--             is not late for each by as long as claiming takes
--   lease     in microseconds; a job whose lease runs out comes back
--   limit_*   all limits that the worker knows; jobs with others are left alone
--   results   the jobs, in the order in which they start, in so many microseconds (job_start_in), and a last row without a
--             job: next_in, the microseconds until there may be something to do (NULL: nothing is known to come); lapsed:
--             there are leases that have run out; look_again: claim again before sleeping, as jobs may have come before
--             this worker was known to sleep, or stand behind others that had to be put in line
--
-- A group is claimed from by whoever has its row locked: its jobs start in the order of (priority, run_at, id). Who meets a
-- locked one leaves it alone.
CREATE OR REPLACE FUNCTION public.rate_limit_claim(
  queue_name text,
  worker_name text,
  most integer,
  ahead bigint,
  lease bigint,
  sleep bigint,
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[]
)
RETURNS TABLE (
  job_id bigint,
  job_starts integer,
  job_start_in bigint,
  next_in bigint,
  lapsed boolean,
  look_again boolean
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
SET lock_timeout = '1s'
AS $function$
DECLARE
  clock bigint := public.rate_limit_clock();
  horizon bigint;
  level bigint; -- priorities are gone through from the highest on
  level_ids bigint[];
  level_keys text[];
  reach bigint := most; -- how many due jobs it reads
  is_all_seen boolean; -- there are no more than those
  due_ids bigint[]; -- of scheduled jobs
  due_keys text[];
  locked_ids bigint[];
  front_ids bigint[]; -- of those that have paid ahead, and whose moment has come
  front_keys text[];
  keys text[]; -- of groups that may have something to start
  lined_keys text[]; -- those whose lines are ready
  group_row record;
  open_keys text[];
  open_floors bigint[]; -- before which nothing of the group starts
  open_refused bigint[]; -- the job that was refused last
  shut_keys text[];
  line_ids bigint[] := '{}';
  started_ids bigint[] := '{}';
  started_ats bigint[] := '{}';
  stopped_keys text[] := '{}'; -- groups that had to stop, and until when
  stopped_ats bigint[] := '{}';
  stopped_run_ats bigint[] := '{}';
  stopped_ids bigint[] := '{}';
  parked bigint := 0;
  was_asleep boolean;
  next_at bigint;
  other_at bigint;

  --@include declare_starts
BEGIN
  IF NOT coalesce(most >= 1 AND ahead >= 0 AND lease >= 1 AND sleep >= 1, false) THEN
    RAISE EXCEPTION 'invalid_claim: most, lease and sleep are 1 or more and ahead is not negative, not %, %, % and %',
      coalesce(most::text, 'NULL'), coalesce(lease::text, 'NULL'), coalesce(sleep::text, 'NULL'),
      coalesce(ahead::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Claim at least one job.';
  END IF;

  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'jobs are claimed at READ COMMITTED, not at %', current_setting('transaction_isolation')
      USING ERRCODE = 'invalid_transaction_state', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
  END IF;

  horizon := clock + ahead;

  --@include give_back

  SELECT array_agg(f.id), array_agg(f.key) INTO front_ids, front_keys
  FROM (
    SELECT j.id, j.key
    FROM public.rate_limit_jobs AS j
    WHERE j.queue = queue_name AND j.state = 'available' AND j.paid_until <= horizon
      AND j.limit_names <@ rate_limit_claim.limit_names
    ORDER BY j.paid_until
    LIMIT most
  ) AS f;

  SELECT array_agg(r.key) INTO lined_keys
  FROM (
    SELECT g.key
    FROM public.rate_limit_groups AS g
    WHERE g.queue = queue_name AND g.has_line AND g.not_before <= horizon
      -- Not those of which nothing could be started here; a line that has gone is to be found out.
      AND (
        EXISTS (
          SELECT
          FROM public.rate_limit_jobs AS j
          WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available'
            AND j.limit_names <@ rate_limit_claim.limit_names
        )
        OR NOT EXISTS (
          SELECT
          FROM public.rate_limit_jobs AS j
          WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available'
        )
      )
    ORDER BY g.not_before
    LIMIT most
  ) AS r;

  -- The first ones that are due, and the groups that they are of. They are read without a lock: an exclusive one before that of
  -- the group would let others start later jobs of the group first, and one that claims share would make a multixact of each.
  LOOP
    due_ids := '{}';
    due_keys := '{}';
    level := 2147483648;
    LOOP
      SELECT j.priority INTO level
      FROM public.rate_limit_jobs AS j
      WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.priority < level
      ORDER BY j.priority DESC
      LIMIT 1;
      EXIT WHEN NOT FOUND;
      SELECT array_agg(d.id), array_agg(d.key) INTO level_ids, level_keys
      FROM (
        SELECT j.id, j.key
        FROM public.rate_limit_jobs AS j
        WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.priority = level AND j.run_at <= horizon
          AND j.limit_names <@ rate_limit_claim.limit_names
        ORDER BY j.run_at, j.id
        LIMIT reach - cardinality(due_ids)
      ) AS d;
      due_ids := due_ids || level_ids;
      due_keys := due_keys || level_keys;
      EXIT WHEN cardinality(due_ids) >= reach;
    END LOOP;
    is_all_seen := cardinality(due_ids) < reach;
    SELECT coalesce(array_agg(DISTINCT k ORDER BY k), '{}') INTO keys
    FROM unnest(due_keys || front_keys || lined_keys) AS k;
    EXIT WHEN keys = '{}';
    --@include lock_due
  END LOOP;

  IF keys <> '{}' THEN
    --@include start
  END IF;

  RETURN QUERY
  WITH updated AS (
    UPDATE public.rate_limit_jobs AS j
    SET
      state = 'running',
      starts = j.starts + 1,
      paid_until = NULL,
      paid_item = NULL,
      started_at = s.at,
      lease_until = clock + lease,
      worker = worker_name
    FROM unnest(started_ids, started_ats) WITH ORDINALITY AS s (id, at, nth)
    WHERE j.id = s.id
    RETURNING j.id, j.starts, j.started_at, s.nth
  )
  SELECT u.id, u.starts, u.started_at - clock, NULL::bigint, NULL::boolean, NULL::boolean
  FROM updated AS u
  ORDER BY u.nth;

  --@include look_ahead
  RETURN NEXT;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_claim IS
  'Starts jobs that are due, as far as their limits allow it; called by workers.';

-- The jobs that a worker has claimed, without those that were started again since.
CREATE OR REPLACE FUNCTION public.rate_limit_claimed_jobs(job_ids bigint[], job_starts integer[])
RETURNS SETOF public.rate_limit_jobs
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  SELECT j.*
  FROM unnest((SELECT rate_limit_claimed_jobs.job_ids), rate_limit_claimed_jobs.job_starts) AS u (id, starts)
  JOIN public.rate_limit_jobs AS j ON j.id = u.id AND j.starts = u.starts
  WHERE j.state = 'running';
END
$function$;
COMMENT ON FUNCTION public.rate_limit_claimed_jobs IS 'The rows of jobs that were just claimed.';

-- The same for workers of earlier releases, which know fewer columns.
CREATE OR REPLACE FUNCTION public.rate_limit_claimed(job_ids bigint[], job_starts integer[])
RETURNS TABLE (
  job_id bigint,
  job_key text,
  job_payload text,
  job_unique_id text,
  job_priority integer,
  job_run_at bigint,
  job_enqueued_at bigint,
  job_failures integer,
  job_max_attempts integer,
  job_limit_names text[],
  job_limit_keys text[],
  job_counts double precision[]
)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  SELECT
    j.id, j.key, j.payload::text, j.unique_id, j.priority, j.run_at, j.enqueued_at, j.failures, j.max_attempts,
    j.limit_names, j.limit_keys, j.counts
  FROM public.rate_limit_claimed_jobs(rate_limit_claimed.job_ids, rate_limit_claimed.job_starts) AS j;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_claimed IS 'Returns what a worker needs to run the jobs that it has claimed.';

-- Takes back what a job has paid ahead, and lets those look again who wait for its moment. Once the moment has gone by, or
-- something was taken since, there is nothing to take back: others may have used it.
CREATE OR REPLACE FUNCTION public.rate_limit_unpay(
  job public.rate_limit_jobs,
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $function$
DECLARE
  bucket_name CONSTANT text := job.limit_names[job.paid_item];
  bucket_key CONSTANT text := job.limit_keys[job.paid_item];
  taken_at bigint;
BEGIN
  IF job.paid_until > public.rate_limit_clock() THEN
    -- Groups before buckets, as in claims.
    WITH waiting AS (
      SELECT g.queue, g.key
      FROM public.rate_limit_groups AS g
      WHERE g.queue = job.queue AND g.has_line AND g.not_before BETWEEN job.paid_until - 10 AND job.paid_until + 1100
      ORDER BY g.key
      FOR NO KEY UPDATE
    )
    UPDATE public.rate_limit_groups AS g
    SET not_before = g.held_until
    FROM waiting AS w
    WHERE g.queue = w.queue AND g.key = w.key;
    SELECT r.ts INTO taken_at
    FROM public.rate_limits AS r
    WHERE r.name = bucket_name || '/started' AND r.key = bucket_key AND r.shard = 0
    FOR NO KEY UPDATE;
    IF taken_at < job.paid_until THEN
      PERFORM public.rate_limit_correct_started(
        ARRAY[bucket_name], ARRAY[bucket_key], ARRAY[job.counts[job.paid_item]], ARRAY[- job.counts[job.paid_item]], NULL,
        limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
    END IF;
  END IF;
  UPDATE public.rate_limit_jobs AS j
  SET paid_until = NULL, paid_item = NULL
  WHERE j.id = job.id;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_unpay IS 'Gives back the tokens that a job paid ahead of its start.';

--@ part lock_due: locks the groups and their due jobs, and ends the loop unless a cancellation holds too many of these
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
open_keys := '{}';
open_floors := '{}';
open_refused := '{}';
shut_keys := '{}';
FOR group_row IN
  SELECT g.key, g.not_before, g.refused_job
  FROM public.rate_limit_groups AS g
  WHERE g.queue = queue_name AND g.key = ANY (keys)
  ORDER BY g.key
  FOR NO KEY UPDATE SKIP LOCKED
LOOP
  IF group_row.not_before > horizon THEN
    shut_keys := shut_keys || group_row.key;
  ELSE
    open_keys := open_keys || group_row.key;
    open_floors := open_floors || group_row.not_before;
    open_refused := open_refused || group_row.refused_job;
  END IF;
END LOOP;
SELECT coalesce(array_agg(l.id), '{}') INTO locked_ids
FROM (
  SELECT j.id
  FROM public.rate_limit_jobs AS j
  WHERE j.id = ANY (due_ids) AND j.state = 'scheduled' AND j.run_at <= horizon AND j.key = ANY (open_keys || shut_keys)
  FOR NO KEY UPDATE SKIP LOCKED
) AS l;
due_ids := locked_ids;
EXIT WHEN is_all_seen;
-- A cancellation may stay open for long: its jobs hide no others. But jobs of groups that others claim from count: claims are
-- short, and there may be any number of such jobs.
EXIT WHEN most <= cardinality(due_ids) + (SELECT count(*) FROM unnest(due_keys) AS k WHERE k <> ALL (open_keys || shut_keys));
reach := 2 * reach;

--@ part give_back: takes back what jobs have paid ahead that were cancelled since; that is a claim of its own
-- (A cancellation does not do so itself: it may be part of a transaction that stays open, and nobody is to wait for that.)
FOR cancelled IN
  SELECT j.*
  FROM public.rate_limit_jobs AS j
  WHERE j.queue = queue_name AND j.state = 'cancelled' AND j.paid_until IS NOT NULL
    AND (j.limit_names <@ rate_limit_claim.limit_names OR j.paid_until <= clock)
  ORDER BY j.limit_names[j.paid_item] COLLATE "C", j.limit_keys[j.paid_item] COLLATE "C"
  LIMIT 100
  FOR NO KEY UPDATE SKIP LOCKED
LOOP
  PERFORM public.rate_limit_unpay(
    cancelled, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  look_again := true;
END LOOP;
IF look_again THEN
  lapsed := false;
  RETURN NEXT;
  RETURN;
END IF;

--@ part look_ahead: when there may be something to do, and until when this worker sleeps
job_id := NULL;
SELECT j.lease_until INTO other_at
FROM public.rate_limit_jobs AS j
WHERE j.queue = queue_name AND j.state = 'running'
ORDER BY j.lease_until
LIMIT 1;
lapsed := coalesce(other_at <= clock, false);
next_at := other_at;
SELECT w.asleep_until > clock INTO was_asleep
FROM public.rate_limit_workers AS w
WHERE w.queue = queue_name AND w.worker = worker_name;
look_again := false;
IF cardinality(started_ids) = most THEN
  IF was_asleep THEN
    UPDATE public.rate_limit_workers AS w
    SET asleep_until = 0
    WHERE w.queue = queue_name AND w.worker = worker_name;
  END IF;
ELSE
  look_again := was_asleep IS NOT TRUE OR parked > 0;
  INSERT INTO public.rate_limit_workers AS w (queue, worker, asleep_until)
  VALUES (queue_name, worker_name, clock + 2 * sleep)
  ON CONFLICT ON CONSTRAINT rate_limit_workers_pkey DO UPDATE
  SET asleep_until = excluded.asleep_until
  WHERE w.asleep_until < clock + sleep;
  SELECT g.not_before INTO other_at
  FROM public.rate_limit_groups AS g
  WHERE g.queue = queue_name AND g.has_line
  ORDER BY g.not_before
  LIMIT 1;
  next_at := least(next_at, other_at);
  level := 2147483648;
  LOOP
    SELECT j.priority, j.run_at INTO level, other_at
    FROM public.rate_limit_jobs AS j
    WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.priority < level
      AND j.limit_names <@ rate_limit_claim.limit_names
    ORDER BY j.priority DESC, j.run_at, j.id
    LIMIT 1;
    EXIT WHEN NOT FOUND;
    next_at := least(next_at, other_at);
  END LOOP;
END IF;
next_in := greatest(next_at - clock, 0);

--@ part declare_starts
-- The jobs at hand, in the order in which they are to start, and their items, one after the other.
cancelled public.rate_limit_jobs;
job record;
jobs integer := 0;
ids bigint[];
job_groups integer[]; -- the place of the group in open_keys
run_ats bigint[];
job_ats bigint[]; -- when it starts
next_jobs integer[]; -- the next one of the same group
job_firsts integer[]; -- the first item
job_sizes integer[];
names text[];
bucket_keys text[];
counts double precision[];
group_nexts integer[]; -- the next job of each group
group_lasts integer[];

-- Those that have paid ahead, or do so now: the moments, and the buckets by their items.
had_paid integer[] := '{}';
had_paid_untils bigint[];
had_paid_items integer[];
paid_ids bigint[] := '{}';
paid_ats bigint[] := '{}';
paid_items integer[] := '{}';
is_contended boolean := false;

-- What is asked in one round: for each group its next job, or several that ask for the same.
asked_jobs integer[];
asked_times integer[];
asked_ats bigint[];
asked_buckets text[];
asked_names text[];
asked_keys text[];
asked_items integer[]; -- the buckets of the items
bucket_ats bigint[];
bucket_ats_of_jobs bigint[];
item_buckets integer[];
item_limits integer[];
item_counts double precision[];
sizes integer[];
all_kinds text[];
all_rates double precision[];
all_periods bigint[];
all_capacities double precision[];
all_starts bigint[];
admitted integer[];
waits bigint[];
refused boolean[];
balances double precision[];
nth_limit integer;
nth_bucket integer;
limit_kind text;
capacity double precision;
full_capacity double precision;
phase bigint;
ready_at bigint;
times integer;
nth integer;
place integer;
items_before integer;
items_seen integer;

-- Those that are refused: what they pay ahead, or for whose payment they wait.
payers integer[];
payer_readies bigint[];
payer_items integer[];
payer_places integer[]; -- of the item within the job
payer_buckets integer[];
payer_names text[];
payer_keys text[];
payer_limits integer[];
payer_counts double precision[];
payer_ops text[];
payer_ats bigint[];
slowest integer;
slowness double precision;
longest double precision;

--@ part stop: the group at `place` waits until ready_at for its job nth
group_nexts[place] := NULL;
stopped_keys := stopped_keys || open_keys[place];
stopped_ats := stopped_ats || ready_at;
stopped_run_ats := stopped_run_ats || run_ats[nth];
stopped_ids := stopped_ids || ids[nth];

--@ part round: asks the buckets of what was started for the next jobs of all groups
asked_jobs := '{}';
asked_times := '{}';
asked_ats := '{}';
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
-- In the order of the jobs: of those that share a bucket the first one gets what there is.
FOREACH nth IN ARRAY ARRAY(SELECT n FROM unnest(group_nexts) AS n WHERE n IS NOT NULL ORDER BY n) LOOP
  times := 1;
  place := next_jobs[nth];
  -- A row of jobs that ask for the same is asked for at once.
  WHILE job_sizes[nth] = 1 AND job_sizes[place] = 1 AND job_ats[place] = job_ats[nth]
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
SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values INTO admitted, waits, refused, balances
FROM public.rate_limit_decide(
  all_kinds, all_rates, all_periods, all_capacities, NULL, all_starts, NULL, NULL, asked_names, asked_keys,
  item_buckets, item_limits, item_counts, NULL, NULL, sizes, asked_times, asked_ats
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
payers := '{}';
payer_readies := '{}';
payer_items := '{}';
payer_places := '{}';
payer_buckets := '{}';
payer_names := '{}';
payer_keys := '{}';
payer_limits := '{}';
payer_counts := '{}';
payer_ops := '{}';
payer_ats := '{}';
items_seen := 0;
FOR i IN 1 .. cardinality(asked_jobs) LOOP
  nth := asked_jobs[i];
  place := job_groups[nth];
  items_before := items_seen;
  items_seen := items_seen + job_sizes[nth];
  FOR n IN 1 .. coalesce(admitted[i], asked_times[i]) LOOP
    started_ids := started_ids || ids[nth];
    started_ats := started_ats || greatest(job_ats[nth], bucket_ats_of_jobs[i]);
    nth := next_jobs[nth];
  END LOOP;
  group_nexts[place] := nth;
  CONTINUE WHEN coalesce(admitted[i], asked_times[i]) = asked_times[i];
  -- The next one can start at this time. Soon enough, or its group stops here.
  ready_at := coalesce(asked_ats[i], public.rate_limit_clock()) + waits[i];
  IF ready_at <= horizon THEN
    WHILE nth IS NOT NULL LOOP
      job_ats[nth] := greatest(job_ats[nth], ready_at, bucket_ats_of_jobs[i]);
      nth := next_jobs[nth];
    END LOOP;
    CONTINUE;
  END IF;
  -- The bucket that it waits for longest.
  slowest := NULL;
  FOR n IN items_before + 1 .. items_seen LOOP
    slowness := (item_counts[n] - balances[n]) * all_periods[item_limits[n]] / all_rates[item_limits[n]];
    IF refused[n] AND (slowest IS NULL OR slowness > longest) THEN
      slowest := n;
      longest := slowness;
    END IF;
  END LOOP;
  -- It pays ahead if it was refused before: others take what it waits for. If somebody else has paid ahead, it waits for that
  -- one's moment.
  IF ids[nth] = open_refused[place] OR balances[slowest] < 0 THEN
    nth_bucket := array_position(payer_buckets, asked_items[slowest]);
    IF nth_bucket IS NULL THEN
      payer_names := payer_names || asked_names[asked_items[slowest]];
      payer_keys := payer_keys || asked_keys[asked_items[slowest]];
      nth_bucket := cardinality(payer_names);
    END IF;
    payers := payers || nth;
    payer_readies := payer_readies || ready_at;
    payer_items := payer_items || nth_bucket;
    payer_buckets[nth_bucket] := asked_items[slowest];
    payer_limits := payer_limits || item_limits[slowest];
    payer_counts := payer_counts || item_counts[slowest];
    payer_places := payer_places || (slowest - items_before);
    payer_ops := payer_ops || CASE WHEN ids[nth] = open_refused[place] THEN 'limit' ELSE 'check' END;
    payer_ats := payer_ats || greatest(asked_ats[i], public.rate_limit_clock());
  ELSE
    --@include stop
  END IF;
END LOOP;
IF payers <> '{}' THEN
  --@include pay
END IF;

--@ part pay: lets the payers pay ahead, each if its bucket owes nothing
-- Down to what it asks for below 0, and no further: only a bucket that owes nothing allows that. The wait of one that is
-- refused then ends when the bucket owes nothing any more.
SELECT d.call_admitted, d.call_waits INTO admitted, waits
FROM (
  SELECT
    array_agg(all_kinds[l.nth] ORDER BY l.place) AS kinds,
    array_agg(all_rates[l.nth] ORDER BY l.place) AS rates,
    array_agg(all_periods[l.nth] ORDER BY l.place) AS periods,
    array_agg(all_capacities[l.nth] ORDER BY l.place) AS capacities,
    array_agg(all_starts[l.nth] ORDER BY l.place) AS starts,
    array_agg(l.place::integer ORDER BY l.place) AS places
  FROM unnest(payer_limits) WITH ORDINALITY AS l (nth, place)
) AS p
CROSS JOIN LATERAL public.rate_limit_decide(
  p.kinds, p.rates, p.periods, p.capacities, payer_counts, p.starts, NULL, NULL, payer_names, payer_keys, payer_items,
  p.places, payer_counts, payer_ops, array_fill(true, ARRAY[cardinality(payers)]), NULL, NULL, payer_ats
) AS d;
FOR i IN 1 .. cardinality(payers) LOOP
  nth := payers[i];
  place := job_groups[nth];
  ready_at := payer_ats[i] + coalesce(waits[i], 0);
  IF coalesce(admitted[i], 1) = 0 THEN
    -- Right after that, those that have waited longer before the others: within a millisecond.
    ready_at := ready_at + 1 + (1e9 / (1e6 + greatest(ready_at - run_ats[nth], 0)))::bigint;
  ELSIF payer_ops[i] = 'check' THEN
    ready_at := payer_readies[i];
  ELSE
    paid_ids := paid_ids || ids[nth];
    paid_ats := paid_ats || ready_at;
    paid_items := paid_items || payer_places[i];
  END IF;
  --@include stop
END LOOP;
