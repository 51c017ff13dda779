-- Writes when these groups have their next turns, and deletes the rows of those that need none. The caller has locked the rows.
--
--   soon         turns up to this time are due
--   served_*     for each job that has reserved tokens: its group and its time. Other groups have another try after 50 ms
--   held_groups  groups that are paused, or wait: they have another try after that
CREATE OR REPLACE FUNCTION rate_limit._end_turns(
  queue_name text, keys text[], soon bigint, served_keys text[], served_untils bigint[], held_groups rate_limit.groups[]
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  later CONSTANT bigint := soon + 50000;
  idle_keys text[];
BEGIN
  -- A group without due jobs keeps its row until its last turn is over: otherwise its next job would have an extra turn.
  idle_keys := ARRAY(
    SELECT t.key
    FROM rate_limit.turns AS t
    WHERE t.queue = (SELECT queue_name) AND t.key = ANY ((SELECT keys)::text[])
      AND NOT EXISTS (SELECT FROM rate_limit._turn_fronts(t.queue, t.key) AS f WHERE f.run_at <= soon)
    FOR UPDATE SKIP LOCKED
  );
  -- A new statement sees the jobs of transactions that had kept these rows.
  DELETE FROM rate_limit.turns AS t
  WHERE t.queue = (SELECT queue_name) AND t.key = ANY ((SELECT idle_keys)::text[])
    AND soon >= (
      SELECT coalesce(max(s.until), 0)
      FROM unnest((SELECT served_keys), served_untils) AS s (key, until)
      WHERE s.key = t.key
    )
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = (SELECT queue_name) AND j.key = t.key AND j.state = 'scheduled' AND j.awaits_turn
    );
  UPDATE rate_limit.turns AS t
  SET
    reserved_until = coalesce(s.until, greatest(h.held_until, later)),
    wanted_at = CASE
      WHEN w.next_at <= soon THEN t.wanted_at
      WHEN k.key <> ALL (idle_keys) THEN later -- Another transaction adds a job.
      -- Without a job, until the last turn is over. Or no worker knows the limits of its jobs, until one looks again.
      ELSE coalesce(w.next_at, greatest(s.until, soon + 1000000))
    END
  FROM unnest((SELECT keys)) AS k (key)
  LEFT JOIN unnest((SELECT held_groups)) AS h ON h.key = k.key
  CROSS JOIN LATERAL (
    SELECT max(s.until) AS until FROM unnest(served_keys, served_untils) AS s (key, until) WHERE s.key = k.key
  ) AS s
  CROSS JOIN LATERAL (SELECT min(f.run_at) AS next_at FROM rate_limit._turn_fronts(queue_name, k.key) AS f) AS w
  WHERE t.queue = queue_name AND t.key = k.key;
END
$function$;
COMMENT ON FUNCTION rate_limit._end_turns IS 'Writes when groups have their next turns.';
