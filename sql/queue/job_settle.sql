-- Corrects what a job reserved from one bucket to what it actually used, up or down, once. Returns 'settled', 'already',
-- 'not_started', 'no_such_item', or NULL if there is no such job.
CREATE OR REPLACE FUNCTION rate_limit._job_settle(
  queue_name text, job_id bigint, limit_name text, limit_key text, used double precision, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[],
  limit_shards integer[]
) RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  job rate_limit.jobs;
  item integer;
BEGIN
  -- A job that waits is not locked: otherwise other jobs would overtake it.
  SELECT j.* INTO job
  FROM rate_limit.jobs AS j
  WHERE j.id = job_id AND j.queue = queue_name AND j.state NOT IN ('scheduled', 'available', 'cancelled')
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    SELECT j.* INTO job
    FROM rate_limit.jobs AS j
    WHERE j.id = job_id AND j.queue = queue_name;
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
  END IF;
  FOR i IN 1 .. cardinality(job.limit_names) LOOP
    IF job.limit_names[i] = limit_name AND job.limit_keys[i] = limit_key THEN
      item := i;
    END IF;
  END LOOP;
  IF item IS NULL THEN
    RETURN 'no_such_item';
  ELSIF job.used_counts[item] IS NOT NULL THEN
    RETURN 'already';
  ELSIF job.starts = 0 OR job.state IN ('scheduled', 'available', 'cancelled') THEN
    RETURN 'not_started';
  END IF;
  job.used_counts[item] := used;
  UPDATE rate_limit.jobs AS j
  SET used_counts = job.used_counts
  WHERE j.id = job_id;
  PERFORM rate_limit._correct(
    limit_name, limit_key, used - job.counts[item], limit_names, limit_kinds, limit_rates, limit_periods,
    limit_capacities, limit_starts, limit_shards);
  -- The '/started' bucket is left alone: workers wait for it, and must not wait for a caller's transaction. If the job is
  -- running, _job_done corrects that bucket.
  RETURN 'settled';
END
$function$;
