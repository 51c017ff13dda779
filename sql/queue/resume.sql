-- Ends the wait of a group that a handler asked for (Finish::Wait). Returns false if the group does not wait. The key is the
-- group as it is stored.
CREATE OR REPLACE FUNCTION rate_limit.resume(queue text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
BEGIN
  WITH held AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.queue = resume.queue AND j.key = resume.key AND j.waits_until > clock
    ORDER BY j.run_at, j.id
    FOR NO KEY UPDATE
  )
  UPDATE rate_limit.jobs AS j
  SET waits_until = NULL
  FROM held AS h
  WHERE j.id = h.id;
  UPDATE rate_limit.groups AS g
  SET not_before = 0, held_until = 0, lag = 0
  WHERE g.queue = resume.queue AND g.key = resume.key AND g.held_until > clock;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM rate_limit._ring(queue, clock);
  RETURN true;
END
$function$;
COMMENT ON FUNCTION rate_limit.resume IS 'Ends the wait of a group of jobs that a handler asked for.';
