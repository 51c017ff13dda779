-- Lets a queue run empty: it takes no new jobs until it is resumed, and works off those that it has. Failed jobs are retried.
-- Returns how many jobs wait or run. Call it again to see how many are left.
CREATE OR REPLACE FUNCTION rate_limit.drain(queue text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
BEGIN
  IF coalesce(queue, '') = '' THEN
    RAISE EXCEPTION 'the name of the queue is missing'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the name of the queue to drain.';
  END IF;
  INSERT INTO rate_limit.queues AS q (queue, draining_at)
  VALUES (drain.queue, rate_limit._clock())
  ON CONFLICT ON CONSTRAINT queues_pkey DO UPDATE
  SET draining_at = excluded.draining_at
  WHERE q.draining_at IS NULL;
  RETURN (
    SELECT count(*)
    FROM rate_limit.jobs AS j
    WHERE j.queue = drain.queue AND j.state IN ('scheduled', 'available')
  ) + (
    SELECT count(*)
    FROM rate_limit.jobs AS j
    WHERE j.queue = drain.queue AND j.state = 'running'
  );
END
$function$;
COMMENT ON FUNCTION rate_limit.drain IS 'Lets a queue run empty: it takes no new jobs until it is resumed.';
