-- Returns when a job starts that waits behind the line of its group. Its reserved tokens are available at `slot`.
-- `job_id` is NULL for a job that is not written yet.
--
-- If the limits hold up the line, the job is as late as the first job of the line was at the last claim. If a handler's
-- Finish::Wait holds the group, the line starts at the end of that wait, and then goes on as fast as the limits allow: a
-- check at that time, on the '/started' buckets, for the tokens of this job and all jobs before it. (Jobs of other groups
-- that share a bucket are not counted. Behind more than 1,000 jobs, the job is as late as the first.)
CREATE OR REPLACE FUNCTION rate_limit._in_line(
  queue_name text, job_key text, job_id bigint, slot bigint, job_priority integer, names text[], bucket_keys text[],
  counts double precision[], item_limits integer[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  most CONSTANT integer := 1000;
  job_group record;
  first_at bigint;
  ahead integer;
  totals double precision[];
  ready_at bigint;
  waits bigint[];
BEGIN
  -- A pause is left out, because its length is not known.
  SELECT coalesce(g.held_before, g.not_before) AS not_before, coalesce(g.held_before, g.held_until) AS held_until, g.lag
  INTO job_group
  FROM rate_limit.groups AS g
  WHERE g.queue = queue_name AND g.key = job_key AND g.has_line;
  IF NOT FOUND THEN
    RETURN slot;
  ELSIF job_group.held_until <= 0 THEN
    RETURN slot + job_group.lag;
  END IF;
  WITH before AS (
    (
      SELECT j.run_at, j.limit_names, j.limit_keys, j.counts
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = job_key AND j.state = 'available' AND NOT j.awaits_turn
        AND j.priority >= job_priority AND (j.run_at < slot OR j.run_at = slot AND j.id < coalesce(job_id, 9223372036854775807))
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT most + 1
    )
    UNION ALL
    (
      SELECT j.run_at, j.limit_names, j.limit_keys, j.counts
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = job_key AND j.state = 'scheduled' AND NOT j.awaits_turn
        AND j.priority >= job_priority AND (j.run_at < slot OR j.run_at = slot AND j.id < coalesce(job_id, 9223372036854775807))
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT most + 1
    )
  )
  SELECT
    (SELECT min(b.run_at) FROM before AS b),
    (SELECT count(*) FROM before AS b),
    ARRAY(
      SELECT i.count + coalesce((
        SELECT sum(u.count)
        FROM before AS b
        CROSS JOIN LATERAL unnest(b.limit_names, b.limit_keys, b.counts) AS u (name, key, count)
        WHERE u.name = i.name AND u.key = i.key
      ), 0)
      FROM unnest(names, bucket_keys, counts) WITH ORDINALITY AS i (name, key, count, nth)
      ORDER BY i.nth)
  INTO first_at, ahead, totals;
  IF ahead > most OR job_group.held_until <= least(first_at, slot) THEN
    RETURN slot + job_group.lag;
  END IF;
  ready_at := greatest(job_group.not_before, job_group.held_until, rate_limit._clock());
  IF names = '{}' THEN
    RETURN greatest(slot, ready_at);
  END IF;
  SELECT d.call_waits INTO waits
  FROM rate_limit._decide_started(
    names, bucket_keys, counts, item_limits, totals, NULL, ARRAY['check'], ARRAY[true], ARRAY[cardinality(names)], NULL,
    ARRAY[ready_at], limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts
  ) AS d;
  RETURN greatest(slot, ready_at + coalesce(waits[1], 0));
END
$function$;
