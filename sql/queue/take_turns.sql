-- Reserves tokens for groups that have their turn. Returns whether it has changed anything, and limits that this worker does not
-- know, and due jobs need.
--
-- In a queue with turns, a job is written without a reservation. A group has only the reservations of one turn: as many jobs as
-- their weight says, or those that start within 0.1 s. When the last one of them is due, the group reserves again, behind all
-- groups that have reserved meanwhile. So the groups that share a bucket take turns, and a new group waits for one round of them
-- at most. No group has a turn while jobs are late: workers are the bottleneck then, and a turn would not wait for its starts.
--
-- It serves up to 20 groups, and ten turns of each. It does not wait for other transactions, which may stay open for long: if one
-- has locked a bucket or the jobs of a group, the group has another try after 50 ms; if it is paused, or waits (Finish::Wait),
-- after that. A bucket without a row may be one that another transaction creates. So a group that needs one is served alone, and
-- only if no other is; then this fails after 50 ms.
CREATE OR REPLACE FUNCTION rate_limit._take_turns(
  queue_name text, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[], slot_limit_names text[],
  OUT has_changed boolean, OUT blocked_names text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET lock_timeout = '50ms'
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  soon CONSTANT bigint := clock + 100000;
  keys text[];
  held_groups rate_limit.groups[];
  work record; -- the jobs at hand, in the order in which they reserve
  busy_keys text[]; -- groups that need a locked bucket
  new_keys text[]; -- groups that need a bucket without a row
  serving text[]; -- groups that go on to their next turn
  job rate_limit.jobs;
  served_keys text[] := '{}';
  served_untils bigint[] := '{}';
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM rate_limit.turns AS t
    WHERE t.queue = (SELECT queue_name) AND greatest(t.wanted_at, t.reserved_until) <= (SELECT soon)
  )
    -- Not those that have been late for long: another transaction may have locked them.
    OR EXISTS (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = (SELECT queue_name) AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
        AND j.run_at BETWEEN (SELECT clock - 10000000) AND (SELECT clock - 100000)
        AND j.limit_names <@ _take_turns.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE
    )
  THEN
    RETURN;
  END IF;
  keys := ARRAY(
    SELECT t.key
    FROM rate_limit.turns AS t
    WHERE t.queue = queue_name AND greatest(t.wanted_at, t.reserved_until) <= (SELECT soon)
    ORDER BY greatest(t.wanted_at, t.reserved_until), t.key
    LIMIT 20
    FOR NO KEY UPDATE SKIP LOCKED
  );
  -- A group that another transaction resumes is locked, and not held for longer than that.
  held_groups := ARRAY(
    SELECT g
    FROM unnest((SELECT keys)) AS k (key)
    JOIN rate_limit.groups AS g ON g.queue = queue_name AND g.key = k.key
    WHERE g.held_until > soon
    FOR SHARE OF g SKIP LOCKED
  );
  SELECT
    coalesce(array_agg(w.id ORDER BY w.nth_turn, w.place, w.nth) FILTER (WHERE w.is_known), '{}') AS ids,
    array_agg(w.key ORDER BY w.nth_turn, w.place, w.nth) FILTER (WHERE w.is_known) AS keys,
    array_agg(w.nth_turn ORDER BY w.nth_turn, w.place, w.nth) FILTER (WHERE w.is_known) AS turns,
    array_agg(w.id) FILTER (WHERE NOT w.is_known AND w.run_at <= clock - 10000000) AS unknown_ids
  INTO work
  FROM (
    SELECT
      j.id, k.key, k.place, j.nth, j.run_at,
      j.limit_names <@ _take_turns.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE AS is_known,
      (j.nth - 1) / first_value(j.weight) OVER (PARTITION BY k.place ORDER BY j.nth) AS nth_turn
    FROM unnest((SELECT keys)) WITH ORDINALITY AS k (key, place)
    CROSS JOIN LATERAL (
      SELECT
        j.id, j.weight, j.run_at, j.limit_names, j.slot_names,
        row_number() OVER (ORDER BY j.priority DESC, j.run_at, j.id) AS nth
      FROM rate_limit._turn_fronts(queue_name, k.key) AS f
      CROSS JOIN LATERAL (
        SELECT j.*
        FROM rate_limit.jobs AS j
        WHERE j.queue = queue_name AND j.key = k.key AND j.awaits_turn AND j.blocked_by IS NULL AND j.priority = f.priority
          AND j.run_at <= (SELECT soon)
        ORDER BY j.run_at, j.id
        LIMIT 100
      ) AS j
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT 100
    ) AS j
  ) AS w;
  IF work.unknown_ids IS NOT NULL THEN
    blocked_names := rate_limit._block_jobs(work.unknown_ids, limit_names, slot_limit_names);
  END IF;

  WITH items AS (
    SELECT w.key AS job_key, i.name, i.key
    FROM unnest((SELECT work.ids), work.keys) AS w (id, key)
    JOIN rate_limit.jobs AS j ON j.id = w.id
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS i (name, key)
  ),
  buckets AS (
    SELECT array_agg(b.name) AS names, array_agg(b.key) AS keys
    FROM (SELECT DISTINCT i.name, i.key FROM items AS i) AS b
  )
  SELECT
    coalesce(array_agg(DISTINCT i.job_key) FILTER (WHERE h.is_held), '{}'),
    coalesce(array_agg(DISTINCT i.job_key) FILTER (WHERE h.is_held IS NULL), '{}')
  INTO busy_keys, new_keys
  FROM buckets AS b
  CROSS JOIN LATERAL unnest(b.names, b.keys, rate_limit._held(b.names, b.keys)) AS h (name, key, is_held)
  JOIN items AS i ON i.name = h.name AND i.key = h.key;
  busy_keys := busy_keys || ARRAY(
    SELECT g.key
    FROM unnest((SELECT keys)) AS k (key)
    JOIN rate_limit.groups AS g ON g.queue = queue_name AND g.key = k.key
    WHERE g.held_until > soon
  );
  serving := ARRAY(SELECT k FROM unnest(keys) AS k WHERE k <> ALL (busy_keys || new_keys) AND k = ANY (work.keys));
  IF serving = '{}' THEN -- One at random: another one may fail for long.
    serving := ARRAY(SELECT k FROM unnest(new_keys) AS k WHERE k <> ALL (busy_keys) ORDER BY random() LIMIT 1);
  END IF;

  FOR turn IN 0 .. 9 LOOP
    EXIT WHEN serving = '{}';
    FOR job IN
      SELECT j.*
      FROM unnest((SELECT work.ids), work.keys, work.turns) WITH ORDINALITY AS w (id, key, nth_turn, nth)
      JOIN rate_limit.jobs AS j ON j.id = w.id
      WHERE w.nth_turn = turn AND w.key = ANY (serving) AND j.awaits_turn
      ORDER BY w.nth
      FOR NO KEY UPDATE OF j SKIP LOCKED
    LOOP
      served_keys := served_keys || job.key;
      served_untils := served_untils || rate_limit._reserve_turn(
        job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards);
    END LOOP;
    serving := ARRAY(
      SELECT s.key
      FROM unnest(served_keys, served_untils) AS s (key, until)
      WHERE s.key = ANY (serving)
      GROUP BY s.key
      HAVING max(s.until) <= soon
    );
  END LOOP;

  PERFORM rate_limit._end_turns(queue_name, keys, soon, served_keys, served_untils, held_groups);
  has_changed := keys <> '{}';
END
$function$;
COMMENT ON FUNCTION rate_limit._take_turns IS 'Reserves tokens for groups that have their turn.';
