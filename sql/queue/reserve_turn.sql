-- Reserves the tokens of a job in the turn of its group, without a bound, and returns the time of the job. If that is too late
-- for its max_age, the job is cancelled, and 0 is returned. The caller has locked the job and its buckets.
CREATE OR REPLACE FUNCTION rate_limit._reserve_turn(
  job rate_limit.jobs, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  ready bigint;
BEGIN
  ready := greatest(
    job.run_at,
    rate_limit._again(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards)
      + (random() * coalesce(job.jitter, 0))::bigint,
    -- Not before the jobs of the last turn, which may be in line: two readings of the clock may be far apart.
    (SELECT t.reserved_until FROM rate_limit.turns AS t WHERE t.queue = job.queue AND t.key = job.key));
  IF job.not_before IS NULL AND job.jitter IS NULL THEN
    -- Only jobs after this time: before it, there may be a million that wait for their turns.
    ready := greatest(
      ready,
      (
        SELECT l.run_at
        FROM (SELECT job.queue AS queue, job.key AS key, ready AS at OFFSET 0) AS a
        CROSS JOIN LATERAL rate_limit._last_time(a.queue, a.key, job.priority, job.limit_names, job.limit_keys, a.at) AS l
      ));
  END IF;
  UPDATE rate_limit.jobs AS j
  SET awaits_turn = false, run_at = ready
  WHERE j.id = job.id;
  IF ready > job.expires_at THEN
    PERFORM rate_limit._job_cancel(
      job.queue COLLATE "default", job.id, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts,
      limit_shards);
    UPDATE rate_limit.jobs AS j
    SET last_error = 'expired: its tokens would have come after its max_age'
    WHERE j.id = job.id;
    RETURN 0;
  END IF;
  RETURN ready;
END
$function$;
COMMENT ON FUNCTION rate_limit._reserve_turn IS 'Reserves the tokens of a job whose group has its turn.';
