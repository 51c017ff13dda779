-- Marks a job as done, unless the start is not its last one any more: then false, and the transaction of whoever did its
-- work is to be rolled back. What was settled in the meantime is told to the buckets of what was started, too.
CREATE OR REPLACE FUNCTION public.rate_limit_job_done(
  job_id bigint,
  job_starts integer,
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[]
)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
DECLARE
  job record;
BEGIN
  UPDATE public.rate_limit_jobs AS j
  SET state = 'done', finished_at = public.rate_limit_clock(), worker = NULL, lease_until = NULL
  WHERE j.id = job_id AND j.state = 'running' AND j.starts = job_starts
  RETURNING j.limit_names, j.limit_keys, j.counts, j.used_counts INTO job;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF array_remove(job.used_counts, NULL) <> '{}' THEN
    -- Workers wait for these buckets: not for longer than this if the COMMIT that is next does not come.
    PERFORM set_config('idle_in_transaction_session_timeout', '1s', true);
    PERFORM public.rate_limit_correct_started(
      array_agg(u.name), array_agg(u.key), array_agg(u.count), array_agg(u.used - u.count), NULL, limit_names, limit_kinds,
      limit_rates, limit_periods, limit_capacities, limit_starts)
    FROM unnest(job.limit_names, job.limit_keys, job.counts, job.used_counts) AS u (name, key, count, used)
    WHERE u.used <> u.count
    HAVING count(*) > 0;
  END IF;
  RETURN true;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_job_done IS 'Marks a job as done, unless another start has followed.';

-- Corrects the buckets of what was started: charges what is above 0, gives back what is below. Limits that are not known are
-- left out. `counts` is what the jobs ask for, which tells the capacity that they are started under; `ats` stands for the clock.
CREATE OR REPLACE FUNCTION public.rate_limit_correct_started(
  names text[],
  bucket_keys text[],
  counts double precision[],
  amounts double precision[],
  ats bigint[],
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  all_kinds text[] := limit_kinds;
  all_rates double precision[] := limit_rates;
  all_periods bigint[] := limit_periods;
  all_capacities double precision[] := limit_capacities;
  all_starts bigint[] := limit_starts;
  nth_limit integer;
  limit_kind text;
  capacity double precision;
  full_capacity double precision;
  phase bigint;
  buckets text[] := '{}';
  nth_bucket integer;
  asked_names text[] := '{}';
  asked_keys text[] := '{}';
  item_buckets integer[] := '{}';
  item_limits integer[] := '{}';
  item_counts double precision[] := '{}';
  ops text[] := '{}';
  call_ats bigint[];
BEGIN
  FOR i IN 1 .. cardinality(names) LOOP
    CONTINUE WHEN names[i] <> ALL (limit_names);
    --@include started_limit
    nth_bucket := array_position(buckets, length(names[i]) || ':' || names[i] || bucket_keys[i]);
    IF nth_bucket IS NULL THEN
      buckets := buckets || (length(names[i]) || ':' || names[i] || bucket_keys[i]);
      asked_names := asked_names || (names[i] || '/started');
      asked_keys := asked_keys || bucket_keys[i];
      nth_bucket := cardinality(buckets);
    END IF;
    item_buckets := item_buckets || nth_bucket;
    item_limits := item_limits || nth_limit;
    item_counts := item_counts || abs(amounts[i]);
    ops := ops || CASE WHEN amounts[i] > 0 THEN 'charge' ELSE 'credit' END;
    IF ats IS NOT NULL THEN
      call_ats := call_ats || ats[i];
    END IF;
  END LOOP;
  IF ops <> '{}' THEN
    PERFORM public.rate_limit_decide(
      all_kinds, all_rates, all_periods, all_capacities, NULL, all_starts, NULL, NULL, asked_names, asked_keys, item_buckets,
      item_limits, item_counts, ops, NULL, NULL, NULL, call_ats);
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_correct_started IS
  'Charges or credits the buckets that starts of jobs are counted in.';

-- Corrects the bucket that was reserved from: charges what is above 0, gives back what is below, if the limit is known.
CREATE OR REPLACE FUNCTION public.rate_limit_correct(
  name text,
  key text,
  amount double precision,
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[],
  limit_shards integer[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  nth CONSTANT integer := array_position(limit_names, name);
BEGIN
  IF nth IS NOT NULL AND amount <> 0 THEN
    PERFORM public.rate_limit_decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts,
      NULL, limit_shards, ARRAY[name], ARRAY[key], NULL, ARRAY[nth], ARRAY[abs(amount)],
      ARRAY[CASE WHEN amount > 0 THEN 'charge' ELSE 'credit' END], NULL, NULL, NULL, NULL);
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_correct IS 'Charges or credits the bucket that a job reserved from.';

-- Extends the leases of jobs, and says which of them are still under way. A row that somebody has locked is not waited for:
-- as long as its handler's transaction has it, nobody else takes it over.
CREATE OR REPLACE FUNCTION public.rate_limit_job_extend(job_ids bigint[], job_starts integer[], lease bigint)
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
BEGIN
  WITH free AS (
    SELECT j.id
    FROM public.rate_limit_jobs AS j
    JOIN unnest(job_ids, job_starts) AS u (id, starts) ON j.id = u.id AND j.starts = u.starts
    WHERE j.state = 'running'
    FOR NO KEY UPDATE OF j SKIP LOCKED
  )
  UPDATE public.rate_limit_jobs AS j
  SET lease_until = public.rate_limit_clock() + lease
  FROM free AS f
  WHERE j.id = f.id;
  RETURN QUERY
  SELECT j.id
  FROM public.rate_limit_jobs AS j
  JOIN unnest(job_ids, job_starts) AS u (id, starts) ON j.id = u.id AND j.starts = u.starts
  WHERE j.state = 'running';
END
$function$;
COMMENT ON FUNCTION public.rate_limit_job_extend IS
  'Extends the leases of running jobs, and returns which are still running.';

-- The jobs of a queue whose leases have run out. Those that somebody is finishing are left alone.
CREATE OR REPLACE FUNCTION public.rate_limit_jobs_lapsed(queue_name text, most integer)
RETURNS TABLE (job_id bigint, job_starts integer)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
  SELECT j.id, j.starts
  FROM public.rate_limit_jobs AS j
  WHERE j.queue = queue_name AND j.state = 'running' AND j.lease_until <= public.rate_limit_clock()
  ORDER BY j.lease_until
  LIMIT most
  FOR NO KEY UPDATE SKIP LOCKED
$function$;
COMMENT ON FUNCTION public.rate_limit_jobs_lapsed IS 'Returns running jobs whose leases have run out.';
