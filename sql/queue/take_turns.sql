-- Reserves tokens for groups that have their turn, and returns whether it has changed anything.
--
-- In a queue with turns, a job is written without a reservation. A group has only the reservations of one turn: as many jobs as
-- their weight says, or those that start within 0.1 s. When the last one of them is due, the group reserves again, behind all
-- groups that have reserved meanwhile. So the groups that share a bucket take turns, and a new group waits for one round of them
-- at most. It serves up to 20 groups, and 100 jobs of each.
--
-- Buckets are locked before groups and jobs, as enqueuing does. If another transaction has locked a bucket or the jobs of a
-- group, the group is looked at again after 50 ms; if it is paused, or waits (Finish::Wait), after that.
CREATE OR REPLACE FUNCTION rate_limit._take_turns(
  queue_name text, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  soon CONSTANT bigint := clock + 100000;
  later CONSTANT bigint := soon + 50000;
  keys text[] := ARRAY(
    SELECT t.key
    FROM rate_limit.turns AS t
    WHERE t.queue = queue_name AND greatest(t.wanted_at, t.reserved_until) <= soon
    ORDER BY greatest(t.wanted_at, t.reserved_until), t.key
    LIMIT 20
  );
  work record; -- the jobs at hand, in the order in which they reserve
  busy_keys text[]; -- groups that need a locked bucket
  serving text[]; -- groups that go on to their next turn
  served_turns integer := 0;
  answer record;
  served_keys text[] := '{}';
  served_untils bigint[] := '{}';
  idle_keys text[];
BEGIN
  IF keys = '{}' THEN
    RETURN false;
  END IF;
  SELECT
    coalesce(array_agg(w.id ORDER BY w.nth_turn, w.place, w.nth), '{}') AS ids,
    array_agg(w.key ORDER BY w.nth_turn, w.place, w.nth) AS keys,
    array_agg(w.nth_turn ORDER BY w.nth_turn, w.place, w.nth) AS turns
  INTO work
  FROM (
    SELECT
      j.id, k.key, k.place, j.nth, (j.nth - 1) / first_value(j.weight) OVER (PARTITION BY k.place ORDER BY j.nth) AS nth_turn
    FROM unnest(keys) WITH ORDINALITY AS k (key, place)
    CROSS JOIN LATERAL (
      SELECT j.id, j.weight, row_number() OVER (ORDER BY j.priority DESC, j.run_at, j.id) AS nth
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = k.key AND j.awaits_turn AND j.run_at <= soon
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT 100
    ) AS j
  ) AS w;

  WITH items AS (
    SELECT w.key AS job_key, i.name, i.key
    FROM unnest(work.ids, work.keys) AS w (id, key)
    JOIN rate_limit.jobs AS j ON j.id = w.id
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS i (name, key)
  ),
  buckets AS (
    SELECT array_agg(b.name ORDER BY b.name, b.key) AS names, array_agg(b.key ORDER BY b.name, b.key) AS keys
    FROM (SELECT DISTINCT i.name COLLATE "C" AS name, i.key COLLATE "C" AS key FROM items AS i) AS b
  )
  SELECT coalesce(array_agg(DISTINCT i.job_key), '{}') INTO busy_keys
  FROM buckets AS b
  CROSS JOIN LATERAL unnest(b.names, b.keys, rate_limit._held(b.names, b.keys)) AS h (name, key, is_held)
  JOIN items AS i ON i.name = h.name AND i.key = h.key
  WHERE h.is_held;

  keys := ARRAY(
    SELECT t.key
    FROM rate_limit.turns AS t
    WHERE t.queue = queue_name AND t.key = ANY (keys) AND greatest(t.wanted_at, t.reserved_until) <= soon
    FOR NO KEY UPDATE SKIP LOCKED
  );
  serving := ARRAY(
    SELECT k
    FROM unnest(keys) AS k
    WHERE k <> ALL (busy_keys) AND NOT EXISTS (
      SELECT
      FROM rate_limit.groups AS g
      WHERE g.queue = queue_name AND g.key = k AND g.held_until > soon
    )
  );
  WHILE serving <> '{}' LOOP
    answer := rate_limit._reserve_turn(
      queue_name,
      ARRAY(
        SELECT w.id
        FROM unnest(work.ids, work.keys, work.turns) WITH ORDINALITY AS w (id, key, nth_turn, nth)
        WHERE w.nth_turn = served_turns AND w.key = ANY (serving)
        ORDER BY w.nth
      ),
      limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards);
    served_keys := served_keys || answer.keys;
    served_untils := served_untils || answer.untils;
    serving := ARRAY(SELECT s.key FROM unnest(answer.keys, answer.untils) AS s (key, until) WHERE s.until <= soon);
    served_turns := served_turns + 1;
  END LOOP;

  -- A group without jobs keeps its row until its last turn is over: otherwise its next job would have an extra turn.
  idle_keys := ARRAY(
    SELECT t.key
    FROM rate_limit.turns AS t
    WHERE t.queue = queue_name AND t.key = ANY (keys)
      AND soon >= (SELECT coalesce(max(s.until), 0) FROM unnest(served_keys, served_untils) AS s (key, until) WHERE s.key = t.key)
      AND NOT EXISTS (
        SELECT
        FROM rate_limit.jobs AS j
        WHERE j.queue = queue_name AND j.key = t.key AND j.awaits_turn
      )
    FOR UPDATE SKIP LOCKED
  );
  -- A new statement sees the jobs of transactions that had kept these rows.
  DELETE FROM rate_limit.turns AS t
  WHERE t.queue = queue_name AND t.key = ANY (idle_keys)
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = t.key AND j.awaits_turn
    );
  UPDATE rate_limit.turns AS t
  SET
    reserved_until = coalesce(s.until, greatest(h.held_until, later)),
    wanted_at = CASE
      WHEN w.next_at <= soon THEN t.wanted_at
      ELSE coalesce(w.next_at, greatest(s.until, later))
    END
  FROM unnest(keys) AS k (key)
  LEFT JOIN rate_limit.groups AS h ON h.queue = queue_name AND h.key = k.key
  CROSS JOIN LATERAL (
    SELECT max(s.until) AS until FROM unnest(served_keys, served_untils) AS s (key, until) WHERE s.key = k.key
  ) AS s
  CROSS JOIN LATERAL (
    SELECT coalesce(
        (
          SELECT j.run_at
          FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.key = k.key AND j.awaits_turn AND j.run_at <= soon
          ORDER BY j.priority DESC, j.run_at, j.id
          LIMIT 1
        ),
        (
          SELECT min(j.run_at)
          FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.key = k.key AND j.awaits_turn
        )) AS next_at
  ) AS w
  WHERE t.queue = queue_name AND t.key = k.key;
  RETURN keys <> '{}';
END
$function$;
COMMENT ON FUNCTION rate_limit._take_turns IS 'Reserves tokens for groups that have their turn.';
