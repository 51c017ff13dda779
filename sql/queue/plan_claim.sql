-- Ends a claim: records until when the worker sleeps, and returns when there may be something to do. If the concurrency limits
-- that the worker knows are not those of its last claim, groups that wait for their slots look again.
--
--   is_paused   the queue is paused: no job has to be waited for
--   is_full     the claim has started as many jobs as the worker asked for, so the worker is awake
--   listens     only a worker that hears notifications counts as asleep
--   has_parked  the claim has put due jobs in line, which may have hidden others
--   results     as of _claim
CREATE OR REPLACE FUNCTION rate_limit._plan_claim(
  queue_name text, worker_name text, clock bigint, sleep bigint, is_paused boolean, is_full boolean, has_parked boolean,
  limit_names text[], slot_limit_names text[], slot_capacities double precision[], listens boolean, OUT next_in bigint,
  OUT lapsed boolean, OUT look_again boolean
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  was_asleep boolean;
  slots CONSTANT text[] := nullif(slot_limit_names || slot_capacities::text[], '{}');
  known_slots text[];
  level bigint := 2147483648; -- the loop reads one priority after the other, from the highest down
  next_at bigint;
  other_at bigint;
BEGIN
  SELECT j.lease_until INTO next_at
  FROM rate_limit.jobs AS j
  WHERE j.queue = queue_name AND j.state = 'running'
  ORDER BY j.lease_until
  LIMIT 1;
  lapsed := coalesce(next_at <= clock, false);
  SELECT w.asleep_until > clock, w.known_slots INTO was_asleep, known_slots
  FROM rate_limit.workers AS w
  WHERE w.queue = queue_name AND w.worker = worker_name;
  look_again := slots IS DISTINCT FROM known_slots;
  IF look_again THEN
    INSERT INTO rate_limit.workers AS w (queue, worker, asleep_until, known_slots)
    VALUES (queue_name, worker_name, clock, slots)
    ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE
    SET known_slots = excluded.known_slots;
    PERFORM rate_limit._wake_groups(g.slot_name COLLATE "default", g.slot_key, 1, NULL, NULL, true)
    FROM (
      SELECT DISTINCT g.slot_name, g.slot_key
      FROM rate_limit.groups AS g
      WHERE g.slot_name = ANY (slot_limit_names) AND g.queue = queue_name
    ) AS g;
  END IF;
  IF was_asleep AND (is_full OR NOT listens) THEN
    UPDATE rate_limit.workers AS w
    SET asleep_until = clock
    WHERE w.queue = queue_name AND w.worker = worker_name;
  END IF;
  IF NOT is_full THEN
    look_again := look_again OR has_parked OR listens AND was_asleep IS NOT TRUE;
    IF listens THEN
      INSERT INTO rate_limit.workers AS w (queue, worker, asleep_until)
      VALUES (queue_name, worker_name, clock + 2 * sleep)
      ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE
      SET asleep_until = excluded.asleep_until
      WHERE w.asleep_until < clock + sleep;
    END IF;
    SELECT g.not_before INTO other_at
    FROM rate_limit.groups AS g
    WHERE g.queue = queue_name AND g.has_line AND NOT is_paused
    ORDER BY g.not_before
    LIMIT 1;
    next_at := least(next_at, other_at);
    -- This claim has just taken the turns that it could: a pause before the next try.
    SELECT greatest(greatest(t.wanted_at, t.reserved_until) - 100000, clock + 50000) INTO other_at
    FROM rate_limit.turns AS t
    WHERE t.queue = queue_name AND NOT is_paused
    ORDER BY greatest(t.wanted_at, t.reserved_until)
    LIMIT 1;
    next_at := least(next_at, other_at);
    LOOP
      SELECT j.priority INTO level
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
        AND j.priority < level AND NOT is_paused
      ORDER BY j.priority DESC
      LIMIT 1;
      EXIT WHEN NOT FOUND;
      -- Jobs with limits that this worker does not know may be many: look again when the last of these is due.
      SELECT w.run_at INTO other_at
      FROM (
        SELECT
          j.run_at, row_number() OVER (ORDER BY j.run_at, j.id) AS nth,
          j.limit_names <@ _plan_claim.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE AS is_known
        FROM rate_limit.jobs AS j
        WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
          AND j.priority = level
        ORDER BY j.run_at, j.id
        LIMIT 1000
      ) AS w
      WHERE w.is_known OR w.nth = 1000
      LIMIT 1;
      next_at := least(next_at, other_at);
    END LOOP;
  END IF;
  next_in := CASE WHEN next_at IS NOT NULL THEN greatest(next_at - clock, 0) END; -- greatest() ignores NULL.
END
$function$;
