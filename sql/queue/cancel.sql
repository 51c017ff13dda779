-- Cancels a job that has not started, and gives its tokens back. The jobs behind it that ask for the same move up (but
-- those that failed before, or asked for a time): each gets the time of the one before it, so what is given back is the last of their times, and the next job to be enqueued
-- gets that. Answers the state that the job was in, or NULL if there is none: 'scheduled' and 'available' are cancelled.
CREATE OR REPLACE FUNCTION public.rate_limit_job_cancel(
  queue_name text,
  job_id bigint,
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[],
  limit_shards integer[]
)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
DECLARE
  job public.rate_limit_jobs;
BEGIN
  SELECT j.* INTO job
  FROM public.rate_limit_jobs AS j
  WHERE j.id = job_id AND j.queue = queue_name
  FOR UPDATE;
  IF NOT FOUND OR job.state NOT IN ('scheduled', 'available') THEN
    RETURN job.state;
  END IF;
  UPDATE public.rate_limit_jobs AS j
  SET state = 'cancelled', finished_at = public.rate_limit_clock()
  WHERE j.id = job_id;
  -- In the global order of the buckets.
  PERFORM public.rate_limit_correct(
    u.name, '', u.key, - u.count, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts,
    limit_shards)
  FROM (
    SELECT u.*
    FROM unnest(job.limit_names, job.limit_keys, job.counts) AS u (name, key, count)
    ORDER BY u.name COLLATE "C", u.key COLLATE "C"
  ) AS u;
  -- Nobody is waited for: what is being started is not behind it any more.
  WITH behind AS (
    SELECT j.id, j.run_at
    FROM public.rate_limit_jobs AS j
    WHERE j.queue = job.queue AND j.key = job.key AND j.state IN ('scheduled', 'available')
      AND (j.run_at, j.id) > (job.run_at, job.id) AND j.not_before IS NULL AND j.failures = 0
      AND j.limit_names = job.limit_names AND j.limit_keys = job.limit_keys AND j.counts = job.counts
    ORDER BY j.run_at, j.id
    FOR UPDATE SKIP LOCKED
  ),
  moved AS (
    SELECT b.id, lag(b.run_at, 1, job.run_at) OVER (ORDER BY b.run_at, b.id) AS run_at
    FROM behind AS b
  )
  UPDATE public.rate_limit_jobs AS j
  SET run_at = m.run_at
  FROM moved AS m
  WHERE j.id = m.id;
  RETURN job.state;
END
$function$;
