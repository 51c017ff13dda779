-- Returns the number of jobs by state, and how long the oldest due job is overdue, in microseconds or 0. The indexes that it
-- reads contain only these states, so jobs that are done cost nothing. While a handler's Finish::Wait holds a group, its jobs
-- count as late only after the end of that wait; while the group or the queue is paused, they do not. Jobs that wait for the turn
-- of their group are late if the turn is: workers look for due turns. blocked: how many scheduled jobs no worker can start
-- (blocked_by).
CREATE OR REPLACE FUNCTION rate_limit._queue_gauges(
  queue_name text, OUT scheduled bigint, OUT available bigint, OUT running bigint, OUT dead bigint, OUT lag bigint,
  OUT blocked bigint
) LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
BEGIN
  SELECT
    coalesce(sum(w.scheduled), 0), coalesce(sum(w.available), 0),
    coalesce(max(clock - greatest(w.first_at, g.held_until)) FILTER (WHERE w.first_at IS NOT NULL), 0)
  INTO scheduled, available, lag
  FROM (
    SELECT w.key, w.scheduled, w.available, least(w.first_at, t.at) AS first_at
    FROM (
      SELECT
        j.key, count(*) FILTER (WHERE j.state = 'scheduled') AS scheduled,
        count(*) FILTER (WHERE j.state = 'available') AS available,
        min(j.run_at) FILTER (WHERE NOT j.awaits_turn) AS first_at,
        min(j.run_at) FILTER (WHERE j.awaits_turn AND j.blocked_by IS NULL) AS turn_at
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.state IN ('scheduled', 'available')
      GROUP BY j.key
    ) AS w
    LEFT JOIN LATERAL (
      SELECT greatest(t.wanted_at, t.reserved_until, w.turn_at) AS at
      FROM rate_limit.turns AS t
      WHERE t.queue = queue_name AND t.key = w.key AND w.turn_at IS NOT NULL
    ) AS t ON true
  ) AS w
  LEFT JOIN rate_limit.groups AS g ON g.queue = queue_name AND g.key = w.key;
  IF lag < 0 OR EXISTS (
    SELECT
    FROM rate_limit.queues AS q
    WHERE q.queue = queue_name AND q.paused_at IS NOT NULL
  )
  THEN
    lag := 0;
  END IF;
  SELECT count(*) INTO running
  FROM rate_limit.jobs AS j
  WHERE j.queue = queue_name AND j.state = 'running';
  SELECT count(*) INTO dead
  FROM rate_limit.jobs AS j
  WHERE j.queue = queue_name AND j.state = 'dead';
  SELECT count(*) INTO blocked
  FROM rate_limit.jobs AS j
  WHERE j.queue = queue_name AND j.blocked_by IS NOT NULL;
END
$function$;
