-- Computes anew when the jobs of one group start, from what their limits grant now, and returns where to go on: a step of a
-- walk over the groups of a queue. Without it, jobs that were enqueued before a rate was raised, or before tokens were given
-- back, would keep their late times. Workers walk when they see that their limits are not those of the last walk.
--
-- Jobs of the same limits and keys keep their order. In one call of _decide, the group's jobs give back the tokens that they
-- have reserved, and reserve them again, the oldest job first, so the buckets end as they were. If others have reserved from the buckets, these could be
-- ahead of the jobs or behind them. Then a job's time may only become earlier, and never by what others have reserved.
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
  totals double precision[];
  has_rest boolean; -- whether there are more jobs than one step computes
  waits bigint[];
  balances double precision[];
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
    SELECT b.names, b.keys, b.totals, d.call_waits, d.item_values[:cardinality(b.names)]
    INTO names, keys, totals, waits, balances
    FROM (
      SELECT
        array_agg(t.name ORDER BY t.nth) AS names, array_agg(t.key ORDER BY t.nth) AS keys,
        array_agg(t.total ORDER BY t.nth) AS totals,
        array_agg(array_position(limit_names, t.name) ORDER BY t.nth) AS limits,
        array_agg(t.rest ORDER BY t.nth) FILTER (WHERE t.rest > 0) AS rests,
        array_agg(t.nth::integer ORDER BY t.nth) FILTER (WHERE t.rest > 0) AS rest_buckets,
        array_agg(array_position(limit_names, t.name) ORDER BY t.nth) FILTER (WHERE t.rest > 0) AS rest_limits
      FROM (
        SELECT
          u.name, u.key, sum(u.count) AS total, coalesce(sum(u.count) FILTER (WHERE i.nth > most), 0) AS rest,
          row_number() OVER (ORDER BY u.name COLLATE "C", u.key COLLATE "C") AS nth
        FROM unnest(ids) WITH ORDINALITY AS i (id, nth)
        JOIN rate_limit.jobs AS j ON j.id = i.id
        CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) AS u (name, key, count)
        GROUP BY u.name, u.key
      ) AS t
    ) AS b
    CROSS JOIN LATERAL (
      SELECT
        array_agg(p.bucket ORDER BY i.nth, u.place) AS buckets,
        array_agg(array_position(limit_names, u.name) ORDER BY i.nth, u.place) AS limits,
        array_agg(u.count ORDER BY i.nth, u.place) AS counts
      FROM unnest(ids[:most]) WITH ORDINALITY AS i (id, nth)
      JOIN rate_limit.jobs AS j ON j.id = i.id
      CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) WITH ORDINALITY AS u (name, key, count, place)
      JOIN LATERAL (
        SELECT n.nth::integer AS bucket
        FROM unnest(b.names, b.keys) WITH ORDINALITY AS n (name, key, nth)
        WHERE n.name = u.name AND n.key = u.key
      ) AS p ON true
    ) AS i
    CROSS JOIN LATERAL (
      SELECT array_agg(cardinality(j.counts) ORDER BY s.nth) AS sizes
      FROM unnest(ids[:most]) WITH ORDINALITY AS s (id, nth)
      JOIN rate_limit.jobs AS j ON j.id = s.id
    ) AS s
    CROSS JOIN LATERAL rate_limit._decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts, NULL, limit_shards, b.names, b.keys,
      ARRAY(SELECT generate_series(1, cardinality(b.names))) || i.buckets || b.rest_buckets,
      b.limits || i.limits || b.rest_limits, b.totals || i.counts || b.rests,
      'credit'::text || array_fill('limit'::text, ARRAY[cardinality(s.sizes) + has_rest::integer]),
      false || array_fill(true, ARRAY[cardinality(s.sizes) + has_rest::integer]),
      cardinality(b.names) || s.sizes || CASE WHEN has_rest THEN ARRAY[cardinality(b.rests)] END, NULL, NULL
    ) AS d;
    clock := rate_limit._clock();
    -- What is left after the credit shows whether only these jobs have reserved.
    WITH timed AS (
      SELECT
        j.id, j.run_at,
        max(
          CASE
            WHEN has_rest OR -1e-6 > ANY (balances) THEN least(j.run_at, clock + coalesce(w.wait, 0))
            ELSE clock + coalesce(w.wait, 0)
          END) OVER (PARTITION BY j.limit_names, j.limit_keys ORDER BY j.id) AS new_run_at
      FROM unnest(ids[:most], waits[2:cardinality(ids[:most]) + 1]) AS w (id, wait)
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
