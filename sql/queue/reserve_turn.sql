-- Reserves the tokens of these jobs, one job after the other, without a bound. Each job then has its time, as if it were enqueued
-- now. Skips jobs that another transaction has locked. Returns the groups of the jobs, and the time of the last one of each.
-- Limits that are no longer defined are left out. The caller has locked the buckets.
CREATE OR REPLACE FUNCTION rate_limit._reserve_turn(
  queue_name text, job_ids bigint[], limit_names text[], limit_kinds text[], limit_rates double precision[],
  limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[], limit_shards integer[],
  OUT keys text[], OUT untils bigint[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  ids bigint[];
  ask record;
  waits bigint[];
  clock bigint;
BEGIN
  ids := ARRAY(
    SELECT j.id
    FROM unnest(job_ids) WITH ORDINALITY AS u (id, nth)
    JOIN rate_limit.jobs AS j ON j.id = u.id
    WHERE j.awaits_turn
    ORDER BY u.nth
    FOR NO KEY UPDATE OF j SKIP LOCKED
  );
  WITH items AS (
    SELECT
      u.nth, i.place, i.name, i.key, i.count, array_position(_reserve_turn.limit_names, i.name) AS nth_limit,
      dense_rank() OVER (ORDER BY i.name COLLATE "C", i.key COLLATE "C")::integer AS bucket
    FROM unnest(ids) WITH ORDINALITY AS u (id, nth)
    JOIN rate_limit.jobs AS j ON j.id = u.id
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) WITH ORDINALITY AS i (name, key, count, place)
    WHERE i.name = ANY (_reserve_turn.limit_names)
  )
  SELECT b.names, b.keys, i.buckets, i.limits, i.counts, s.sizes INTO ask
  FROM (
    SELECT array_agg(d.name ORDER BY d.bucket) AS names, array_agg(d.key ORDER BY d.bucket) AS keys
    FROM (SELECT DISTINCT i.bucket, i.name, i.key FROM items AS i) AS d
  ) AS b
  CROSS JOIN (
    SELECT
      array_agg(i.bucket ORDER BY i.nth, i.place) AS buckets, array_agg(i.nth_limit ORDER BY i.nth, i.place) AS limits,
      array_agg(i.count ORDER BY i.nth, i.place) AS counts
    FROM items AS i
  ) AS i
  CROSS JOIN (
    SELECT array_agg((SELECT count(*)::integer FROM items AS i WHERE i.nth = u.nth) ORDER BY u.nth) AS sizes
    FROM generate_series(1, cardinality(ids)) AS u (nth)
  ) AS s;
  IF ask.names IS NOT NULL THEN
    SELECT d.call_waits INTO waits
    FROM rate_limit._decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts, NULL, limit_shards, ask.names, ask.keys,
      ask.buckets, ask.limits, ask.counts, NULL, array_fill(true, ARRAY[cardinality(ids)]), ask.sizes, NULL, NULL
    ) AS d;
  END IF;
  clock := rate_limit._clock();
  WITH timed AS (
    SELECT
      j.id,
      greatest(
        j.run_at, clock + coalesce(u.wait, 0) + (random() * coalesce(j.jitter, 0))::bigint,
        CASE
          WHEN j.not_before IS NULL AND j.jitter IS NULL
          THEN rate_limit._last_time(queue_name, j.key, j.priority, j.limit_names, j.limit_keys)
        END
      ) AS run_at
    FROM unnest(ids, waits) AS u (id, wait)
    JOIN rate_limit.jobs AS j ON j.id = u.id
  ),
  reserved AS (
    UPDATE rate_limit.jobs AS j
    SET awaits_turn = false, run_at = t.run_at
    FROM timed AS t
    WHERE j.id = t.id
    RETURNING j.key, j.run_at
  )
  SELECT array_agg(r.key), array_agg(r.until) INTO keys, untils
  FROM (SELECT r.key, max(r.run_at) AS until FROM reserved AS r GROUP BY r.key) AS r;
END
$function$;
COMMENT ON FUNCTION rate_limit._reserve_turn IS 'Reserves the tokens of jobs whose group has its turn.';
