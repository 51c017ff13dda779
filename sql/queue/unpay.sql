-- Takes back the tokens that a job has paid ahead, and lets the groups that wait for its time ask again. Once that time has
-- passed, or something was taken since, nothing is taken back: other jobs may have used the tokens. A group that another
-- transaction has locked is left alone: a cancellation may keep it locked for long, and has woken it.
CREATE OR REPLACE FUNCTION rate_limit._unpay(
  job rate_limit.jobs, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $function$
DECLARE
  bucket_name CONSTANT text := job.limit_names[job.paid_item];
  bucket_key CONSTANT text := job.limit_keys[job.paid_item];
  taken_at bigint;
BEGIN
  IF job.paid_until > rate_limit._clock() THEN
    -- Lock groups before buckets, as claims do.
    WITH waiting AS (
      SELECT g.queue, g.key
      FROM rate_limit.groups AS g
      WHERE g.queue = job.queue AND g.has_line AND g.not_before BETWEEN job.paid_until - 10 AND job.paid_until + 1100
      ORDER BY g.key
      FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE rate_limit.groups AS g
    SET not_before = g.held_until
    FROM waiting AS w
    WHERE g.queue = w.queue AND g.key = w.key;
    SELECT r.ts INTO taken_at
    FROM rate_limit.rate_limits AS r
    WHERE r.name = bucket_name || '/started' AND r.key = bucket_key AND r.shard = 0
    FOR NO KEY UPDATE;
    IF taken_at < job.paid_until THEN
      PERFORM rate_limit._correct_started(
        ARRAY[bucket_name], ARRAY[bucket_key], ARRAY[job.counts[job.paid_item]], ARRAY[- job.counts[job.paid_item]], NULL,
        limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
    END IF;
  END IF;
  UPDATE rate_limit.jobs AS j
  SET paid_until = NULL, paid_item = NULL
  WHERE j.id = job.id;
END
$function$;
