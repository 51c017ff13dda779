-- Stops a queue, or one of its groups: no job starts until it is resumed. Jobs that run go on, and new jobs are enqueued, with
-- the times at which their limits allow them. Returns false if it was paused already. The key is the group as it is stored;
-- NULL: the whole queue.
CREATE OR REPLACE FUNCTION rate_limit.pause(queue text, key text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql
VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  never CONSTANT bigint := 253402300799999999; -- the end of the year 9999
  waited record; -- the slots that the group waits for
BEGIN
  IF coalesce(queue, '') = '' THEN
    RAISE EXCEPTION 'the name of the queue is missing'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the name of the queue to pause.';
  END IF;
  IF key IS NULL THEN
    INSERT INTO rate_limit.queues AS q (queue, paused_at)
    VALUES (pause.queue, rate_limit._clock())
    ON CONFLICT ON CONSTRAINT queues_pkey DO UPDATE
    SET paused_at = excluded.paused_at
    WHERE q.paused_at IS NULL;
    RETURN FOUND;
  END IF;
  SELECT g.slot_name, g.slot_key INTO waited
  FROM rate_limit.groups AS g
  WHERE g.queue = pause.queue AND g.key = pause.key
  FOR NO KEY UPDATE;
  INSERT INTO rate_limit.groups AS g (queue, key, not_before, held_until, held_before)
  VALUES (pause.queue, pause.key, never, never, 0)
  ON CONFLICT ON CONSTRAINT groups_pkey DO UPDATE
  SET
    not_before = never,
    held_until = never,
    held_before = g.held_until,
    slot_name = NULL,
    slot_key = NULL,
    slot_count = NULL,
    slot_since = NULL,
    slot_pause = NULL
  WHERE g.held_before IS NULL;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF waited.slot_name IS NOT NULL THEN -- The next group takes its place.
    PERFORM rate_limit._wake_groups(waited.slot_name, waited.slot_key, 1, NULL, NULL, true);
  END IF;
  RETURN true;
END
$function$;
COMMENT ON FUNCTION rate_limit.pause IS 'Stops a queue or a group of jobs until it is resumed.';
