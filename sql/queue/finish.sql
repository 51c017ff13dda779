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
  FOR i IN 1 .. coalesce(cardinality(job.used_counts), 0) LOOP
    CONTINUE WHEN job.used_counts[i] IS NULL;
    PERFORM public.rate_limit_correct(
      job.limit_names[i], '/started', job.limit_keys[i], job.used_counts[i] - job.counts[i], limit_names, limit_kinds,
      limit_rates, limit_periods, limit_capacities, limit_starts, NULL);
  END LOOP;
  RETURN true;
END
$function$;

-- Charges what is above 0, gives back what is below, if the limit is known.
CREATE OR REPLACE FUNCTION public.rate_limit_correct(
  name text,
  suffix text,
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
      limit_kinds, limit_rates, limit_periods, limit_capacities, NULL,
      CASE
        WHEN limit_kinds[nth] = 'fixed_window' AND limit_starts[nth] IS NULL
        THEN array_fill(public.rate_limit_phase(name, key), ARRAY[cardinality(limit_kinds)])
        ELSE limit_starts
      END,
      NULL, limit_shards, ARRAY[name || suffix], ARRAY[key], NULL, ARRAY[nth], ARRAY[abs(amount)],
      ARRAY[CASE WHEN amount > 0 THEN 'charge' ELSE 'credit' END], NULL, NULL, NULL, NULL);
  END IF;
END
$function$;

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
  FOR UPDATE SKIP LOCKED
$function$;
