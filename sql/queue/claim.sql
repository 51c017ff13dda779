-- Starts due jobs of a queue: never before their run_at, and never more of a group than its limits allow by the time at
-- which they start. Runs in a READ COMMITTED transaction of its own.
--
-- A reservation says when a job may run, if everything goes well. Where workers are late, a job failed or its worker died,
-- jobs start at other times than those; so each start also takes its tokens, from a second bucket of the same limit, whose
-- name ends in '/started'. A job that is on time finds them there. One that does not stands in the line of its group
-- (available) until they are, and the group with it: what is in line starts in order, and is not looked at again before.
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
  job_key text,
  job_payload text,
  job_unique_id text,
  job_priority integer,
  job_run_at bigint,
  job_enqueued_at bigint,
  job_starts integer,
  job_failures integer,
  job_max_attempts integer,
  job_limit_names text[],
  job_limit_keys text[],
  job_counts double precision[],
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
AS $function$
DECLARE
  clock bigint := public.rate_limit_clock();
  horizon bigint;
  level bigint := 2147483648; -- priorities are gone through from the highest on
  level_ids bigint[];
  level_keys text[];
  due_ids bigint[] := '{}'; -- of scheduled jobs
  keys text[] := '{}'; -- of groups that may have something to start
  lined_keys text[]; -- those whose lines are ready
  group_row record;
  open_keys text[] := '{}';
  open_floors bigint[] := '{}'; -- before which nothing of the group starts
  shut_keys text[] := '{}';
  line_ids bigint[] := '{}';
  started_ids bigint[] := '{}';
  started_ats bigint[] := '{}';
  stopped_keys text[] := '{}'; -- groups that had to stop, and until when
  stopped_ats bigint[] := '{}';
  stopped_run_ats bigint[] := '{}';
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

  horizon := clock + ahead;

  -- The first ones that are due, and the groups that they are of.
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
      LIMIT most - cardinality(due_ids)
      -- Shared with others who claim. What somebody is cancelling is left alone, and keeps nobody from the rest.
      FOR KEY SHARE SKIP LOCKED
    ) AS d;
    due_ids := due_ids || level_ids;
    keys := keys || level_keys;
    EXIT WHEN cardinality(due_ids) >= most;
  END LOOP;
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
  SELECT coalesce(array_agg(DISTINCT k ORDER BY k), '{}') INTO keys FROM unnest(keys || lined_keys) AS k;

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
      started_at = s.at,
      lease_until = clock + lease,
      worker = worker_name
    FROM unnest(started_ids, started_ats) WITH ORDINALITY AS s (id, at, nth)
    WHERE j.id = s.id
    RETURNING j.*, s.nth
  )
  SELECT
    u.id, u.key, u.payload::text, u.unique_id, u.priority, u.run_at, u.enqueued_at, u.starts, u.failures,
    u.max_attempts, u.limit_names, u.limit_keys, u.counts, u.started_at - clock, NULL::bigint, NULL::boolean, NULL::boolean
  FROM updated AS u
  ORDER BY u.nth;

  --@include look_ahead
  RETURN NEXT;
END
$function$;

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
job record;
jobs integer := 0;
ids bigint[];
job_groups integer[]; -- the place of the group in open_keys
run_ats bigint[];
job_ats bigint[]; -- when it starts
job_is_paid boolean[];
job_in_debt boolean[]; -- it asks for its tokens before they are there
is_large boolean;
large_jobs boolean[]; -- of those asked: more than the bucket holds
asked_debts boolean[];
paid_ids bigint[] := '{}';
paid_ats bigint[] := '{}';
next_jobs integer[]; -- the next one of the same group
job_firsts integer[]; -- the first item
job_sizes integer[];
names text[];
bucket_keys text[];
counts double precision[];
group_nexts integer[]; -- the next job of each group
group_lasts integer[];

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
