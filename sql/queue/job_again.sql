-- Ends attempts at jobs that have not succeeded: the jobs run again, or are dead after too many failures. Each retry takes a
-- new reservation without a bound; the tokens taken before stay spent.
--
--   reason   failed: retry after the delay, varied by up to half of it. lapsed: the lease has expired. given_up: dead at
--            once. held: the group waits for the delay, with the job first in its line. held_too_often: the same, but it
--            counts as a failure. released: the worker stops. unstarted: the job was claimed but not begun, so it waits in line
--            with its existing reservation. (The tokens of its start are lost: if they were returned, they could count in a later
--            window.) held, released and unstarted are not failures
--   delay    in microseconds
--   results  the new states: scheduled, available or dead; NULL if the job was started again since
CREATE OR REPLACE FUNCTION rate_limit._job_again(
  job_ids bigint[], job_starts integer[], reason text, delay bigint, error text, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[],
  limit_shards integer[], OUT job_states text[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  is_held CONSTANT boolean := reason IN ('held', 'held_too_often');
  job rate_limit.jobs;
  clock bigint;
  ready bigint;
BEGIN
  FOR nth IN 1 .. coalesce(cardinality(job_ids), 0) LOOP
    SELECT j.* INTO job
    FROM rate_limit.jobs AS j
    WHERE j.id = job_ids[nth] AND j.state = (SELECT 'running') AND j.starts = job_starts[nth]
    FOR NO KEY UPDATE;
    job_states[nth] := NULL;
    CONTINUE WHEN NOT FOUND;
    IF reason = 'lapsed' AND job.lease_until > rate_limit._clock() THEN
      CONTINUE; -- The lease was extended after all.
    END IF;
    IF reason NOT IN ('held', 'released', 'unstarted') THEN
      job.failures := job.failures + 1;
      job.last_error := error;
    END IF;
    IF reason = 'given_up' OR job.failures >= job.max_attempts THEN
      job.state := 'dead';
      job.finished_at := rate_limit._clock();
    ELSIF reason = 'unstarted' THEN
      job.state := 'available';
      clock := rate_limit._clock();
      INSERT INTO rate_limit.groups AS g (queue, key, has_line)
      VALUES (job.queue, job.key, true)
      ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE
      SET has_line = true, refused_job = NULL; -- This job comes before that one, which has no reason to pay ahead.
    ELSE
      ready := rate_limit._again(
        job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards);
      job.used_counts := NULL; -- It belonged to the previous reservation.
      clock := rate_limit._clock();
      IF is_held THEN
        job.state := 'available';
      ELSE
        job.state := 'scheduled';
        job.run_at := greatest(ready, clock + (delay * CASE WHEN reason = 'failed' THEN 0.5 + random() ELSE 1 END)::bigint);
      END IF;
    END IF;
    IF is_held THEN -- The group waits even if the job is dead. A claim removes a line without jobs.
      clock := rate_limit._clock();
      job.waits := job.waits + 1;
      INSERT INTO rate_limit.groups AS g (queue, key, not_before, held_until, has_line, lag)
      VALUES (job.queue, job.key, clock + delay, clock + delay, true, clock + delay - job.run_at)
      ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE
      SET
        not_before = greatest(g.not_before, excluded.not_before),
        held_until = greatest(g.held_until, excluded.held_until),
        held_before = CASE WHEN g.held_before IS NOT NULL THEN greatest(g.held_before, excluded.held_until) END,
        has_line = true,
        lag = greatest(coalesce(g.held_before, g.not_before), excluded.not_before) - job.run_at;
    END IF;
    UPDATE rate_limit.jobs AS j
    SET
      state = job.state,
      run_at = job.run_at,
      failures = job.failures,
      last_error = job.last_error,
      finished_at = job.finished_at,
      used_counts = job.used_counts,
      waits = job.waits,
      worker = NULL,
      lease_until = NULL
    WHERE j.id = job.id;
    job_states[nth] := job.state;
    IF job.state <> 'dead' THEN
      PERFORM rate_limit._ring(
        job.queue COLLATE "default", CASE WHEN is_held OR reason = 'unstarted' THEN clock + delay ELSE job.run_at END);
    END IF;
  END LOOP;
END
$function$;
