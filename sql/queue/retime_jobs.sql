-- Computes anew when the jobs of one group start, from what their limits grant now, and returns where to go on: a step of a
-- walk over the groups of a queue. Without it, jobs that were enqueued before a rate was raised, or before tokens were given
-- back, would keep their late times. Workers walk when they see that their limits are not those of the last walk.
--
-- Jobs of the same limits and keys keep their order. In one call of _decide, the group's jobs give back the tokens that they
-- have reserved, and reserve them again, the oldest job first, so the buckets end as they were. If others have reserved from
-- the buckets, these could be ahead of the jobs or behind them. Then a job's time may only become earlier, and never by what
-- others have reserved.
--
-- Jobs with a time of their own are left alone: a not_before, a jitter, or an attempt that has failed.
--
--   after_key, after_id  where the last step has ended; NULL: begin
--   limit_*              all limits that the worker knows
--   results              next_key is NULL: the walk is over. Without next_id, the group is done; is_held: or rather, another
--                        transaction has locked one of its buckets, and nothing was computed
CREATE OR REPLACE FUNCTION rate_limit._retime_jobs(
  queue_name text, worker_name text, after_key text, after_id bigint, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[],
  limit_shards integer[], OUT next_key text, OUT next_id bigint, OUT is_held boolean
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
SET lock_timeout = '1s'
AS $function$
#variable_conflict use_variable
DECLARE
  most CONSTANT integer := 1000;
  known CONSTANT text[] := ARRAY(
    SELECT concat_ws(' ', l.name, l.kind, l.rate, l.period, coalesce(l.capacity, l.rate))
    FROM unnest(limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities) AS l (name, kind, rate, period, capacity)
    ORDER BY l.name);
  clock bigint := rate_limit._clock();
  ids bigint[];
  names text[];
  keys text[];
  limits integer[]; -- the limit of each bucket
  buckets integer[];
  totals double precision[]; -- what all of these jobs have reserved from each bucket
  rests double precision[]; -- and what those have that this step leaves out
  nothing double precision[];
  has_rest boolean; -- whether there are more jobs than one step computes
  job_buckets integer[];
  job_counts double precision[];
  takes integer;
  decided record;
  is_alone boolean; -- nobody else has reserved from the buckets
  first_at bigint;
BEGIN
  IF after_key IS NULL AND EXISTS (
    SELECT
    FROM rate_limit.workers AS w
    WHERE w.queue = queue_name AND w.known_limits = known
  )
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.workers AS w
      WHERE w.queue = queue_name AND w.known_limits <> known
    )
  THEN
    RETURN; -- Another worker has walked.
  END IF;
  next_key := after_key;
  IF after_id IS NULL THEN
    SELECT j.key INTO next_key
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.key >= coalesce(after_key || E'\x01', '') AND j.state IN ('scheduled', 'available')
    ORDER BY j.key
    LIMIT 1;
    IF next_key IS NULL THEN
      UPDATE rate_limit.workers AS w
      SET known_limits = known
      WHERE w.queue = queue_name AND w.known_limits <> known;
      INSERT INTO rate_limit.workers AS w (queue, worker, known_limits)
      VALUES (queue_name, worker_name, known)
      ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE
      SET known_limits = excluded.known_limits;
      RETURN;
    END IF;
  END IF;

  -- Lock buckets before jobs, as enqueuing and cancelling do. These may lock them for long, with the caller's transaction.
  SELECT array_agg(b.name ORDER BY b.name, b.key), array_agg(b.key ORDER BY b.name, b.key) INTO names, keys
  FROM (
    SELECT DISTINCT u.name COLLATE "C" AS name, u.key COLLATE "C" AS key
    FROM rate_limit.jobs AS j
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS u (name, key)
    WHERE j.queue = queue_name AND j.key = next_key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
      AND u.name = ANY (limit_names)
  ) AS b;
  is_held := coalesce(true = ANY (rate_limit._held(names, keys)), false);
  IF is_held THEN
    RETURN;
  END IF;
  FOR nth IN 1 .. coalesce(cardinality(names), 0) LOOP
    PERFORM rate_limit._bucket_rows(names[nth], keys[nth], 1, true, true);
  END LOOP;
  -- No claim starts a job of the group meanwhile. Its line looks at the limits again.
  INSERT INTO rate_limit.groups (queue, key)
  VALUES (queue_name, next_key)
  ON CONFLICT ON CONSTRAINT groups_pkey DO NOTHING;
  PERFORM
  FROM rate_limit.groups AS g
  WHERE g.queue = queue_name AND g.key = next_key
  FOR NO KEY UPDATE;
  UPDATE rate_limit.groups AS g
  SET not_before = g.held_until
  WHERE g.queue = queue_name AND g.key = next_key AND g.has_line AND g.slot_name IS NULL AND g.not_before > clock;
  IF FOUND THEN
    first_at := clock;
  END IF;

  ids := ARRAY(
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.key = next_key AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
      AND j.run_at > clock AND j.id > coalesce(after_id, 0) AND j.not_before IS NULL AND j.jitter IS NULL AND j.starts = 0
      AND j.limit_names <@ limit_names AND j.limit_names <> '{}'
    ORDER BY j.id
    FOR NO KEY UPDATE
  );
  has_rest := cardinality(ids) > most;
  IF ids <> '{}' THEN
    SELECT
      array_agg(t.name ORDER BY t.nth), array_agg(t.key ORDER BY t.nth), array_agg(t.total ORDER BY t.nth),
      array_agg(t.rest ORDER BY t.nth), array_agg(array_position(limit_names, t.name) ORDER BY t.nth)
    INTO names, keys, totals, rests, limits
    FROM (
      SELECT
        u.name, u.key, sum(u.count) AS total, coalesce(sum(u.count) FILTER (WHERE i.nth > most), 0) AS rest,
        row_number() OVER (ORDER BY u.name COLLATE "C", u.key COLLATE "C") AS nth
      FROM unnest(ids) WITH ORDINALITY AS i (id, nth)
      JOIN rate_limit.jobs AS j ON j.id = i.id
      CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) AS u (name, key, count)
      GROUP BY u.name, u.key
    ) AS t;
    ids := ids[:most];
    SELECT array_agg(n.nth::integer ORDER BY i.nth, u.place), array_agg(u.count ORDER BY i.nth, u.place)
    INTO job_buckets, job_counts
    FROM unnest(ids) WITH ORDINALITY AS i (id, nth)
    JOIN rate_limit.jobs AS j ON j.id = i.id
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) WITH ORDINALITY AS u (name, key, count, place)
    JOIN unnest(names, keys) WITH ORDINALITY AS n (name, key, nth) ON n.name = u.name AND n.key = u.key;
    buckets := ARRAY(SELECT generate_series(1, cardinality(names)));
    nothing := array_fill(0.0::double precision, ARRAY[cardinality(names)]);
    takes := cardinality(ids) + has_rest::integer;
    -- What jobs have reserved can be more than the capacity. So each bucket has a second limit, with as much room; the calls with
    -- the first one, before and after, take and return nothing, and bring the bucket up to date.
    decided := rate_limit._decide(
      limit_kinds || ARRAY(SELECT limit_kinds[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
      limit_rates || ARRAY(SELECT limit_rates[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
      limit_periods || ARRAY(SELECT limit_periods[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
      limit_capacities || ARRAY(
        SELECT coalesce(limit_capacities[l.i], limit_rates[l.i]) + totals[l.nth]
        FROM unnest(limits) WITH ORDINALITY AS l (i, nth)
        ORDER BY l.nth),
      NULL,
      limit_starts || ARRAY(SELECT limit_starts[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
      NULL,
      limit_shards || ARRAY(SELECT limit_shards[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
      names, keys, buckets || buckets || job_buckets || CASE WHEN has_rest THEN buckets END || buckets,
      limits || ARRAY(
        SELECT cardinality(limit_names) + u.bucket
        FROM unnest(buckets || job_buckets || CASE WHEN has_rest THEN buckets END) WITH ORDINALITY AS u (bucket, nth)
        ORDER BY u.nth) || limits,
      nothing || totals || job_counts || CASE WHEN has_rest THEN rests END || nothing,
      ARRAY['credit', 'credit'] || array_fill('limit'::text, ARRAY[takes]) || ARRAY['credit'],
      ARRAY[false, false] || array_fill(true, ARRAY[takes]) || ARRAY[false],
      array_fill(cardinality(names), ARRAY[2]) || ARRAY(
        SELECT cardinality(j.counts)
        FROM unnest(ids) WITH ORDINALITY AS i (id, nth)
        JOIN rate_limit.jobs AS j ON j.id = i.id
        ORDER BY i.nth) || array_fill(cardinality(names), ARRAY[1 + has_rest::integer]),
      NULL, NULL);
    is_alone := NOT has_rest AND -1e-6 <= ALL (decided.item_values[cardinality(names) + 1:2 * cardinality(names)]);
    clock := rate_limit._clock();
    -- What is left after the credit shows whether only these jobs have reserved.
    WITH timed AS (
      SELECT
        j.id, j.run_at,
        max(
          CASE
            WHEN is_alone THEN clock + coalesce(w.wait, 0)
            ELSE least(j.run_at, clock + coalesce(w.wait, 0))
          END) OVER (PARTITION BY j.limit_names, j.limit_keys ORDER BY j.id) AS new_run_at
      FROM unnest(ids, decided.call_waits[3:cardinality(ids) + 2]) AS w (id, wait)
      JOIN rate_limit.jobs AS j ON j.id = w.id
    ),
    moved AS (
      UPDATE rate_limit.jobs AS j
      SET run_at = t.new_run_at
      FROM timed AS t
      WHERE j.id = t.id AND EXISTS (
        SELECT
        FROM timed AS o
        WHERE abs(o.new_run_at - o.run_at) > 1000 -- Otherwise only the clock's readings differ.
      )
      RETURNING j.run_at
    )
    SELECT least(first_at, min(m.run_at)) INTO first_at FROM moved AS m;
  END IF;
  next_id := CASE WHEN has_rest THEN ids[most] END;
  IF first_at IS NOT NULL THEN
    PERFORM rate_limit._ring(queue_name, first_at);
  END IF;
END
$function$;
COMMENT ON FUNCTION rate_limit._retime_jobs IS 'Computes anew when the waiting jobs of a group start.';
