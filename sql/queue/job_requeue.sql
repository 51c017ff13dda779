-- Makes a dead or cancelled job run once more, with all its attempts, under a new reservation without a bound. Returns when
-- it will run; NULL if there is no such job, or if it is neither dead nor cancelled.
CREATE OR REPLACE FUNCTION rate_limit._job_requeue(
  queue_name text, job_id bigint, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  job rate_limit.jobs;
  ready bigint;
BEGIN
  SELECT j.* INTO job
  FROM rate_limit.jobs AS j
  WHERE j.id = job_id AND j.queue = queue_name AND j.state IN ('dead', 'cancelled')
  FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  IF job.paid_until IS NOT NULL THEN -- It was cancelled, and no worker has taken its payment back yet.
    PERFORM rate_limit._unpay(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END IF;
  IF job.weight IS NOT NULL THEN -- It waits for a turn again.
    ready := greatest(rate_limit._clock(), job.not_before);
    PERFORM rate_limit._await_turns(queue_name, ARRAY[job.key], ARRAY[ready]);
  ELSE
    ready := greatest(
      rate_limit._again(
        job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards),
      job.not_before);
  END IF;
  UPDATE rate_limit.jobs AS j
  SET state = 'scheduled', run_at = ready, failures = 0, waits = 0, used_counts = NULL, finished_at = NULL,
    expires_at = NULL, awaits_turn = job.weight IS NOT NULL
  WHERE j.id = job_id;
  PERFORM rate_limit._ring(queue_name, ready);
  RETURN ready;
END
$function$;
