-- Starts the jobs of a queue, or of one of its groups, again. A queue is no longer paused, and no longer draining. A group is no
-- longer paused; if it was not, this ends the wait that a handler asked for (Finish::Wait). So such a wait outlasts a pause.
-- Returns false if there was nothing to end. The key is the group as it is stored; NULL: the whole queue.
CREATE OR REPLACE FUNCTION rate_limit.resume(queue text, key text DEFAULT NULL) RETURNS boolean LANGUAGE plpgsql
VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  is_resumed boolean;
BEGIN
  IF key IS NULL THEN
    DELETE FROM rate_limit.queues AS q
    WHERE q.queue = resume.queue;
    is_resumed := FOUND;
  ELSE
    UPDATE rate_limit.groups AS g
    SET not_before = g.held_before, held_until = g.held_before, held_before = NULL, lag = 0, refused_job = NULL
    WHERE g.queue = resume.queue AND g.key = resume.key AND g.held_before IS NOT NULL;
    is_resumed := FOUND;
    IF NOT is_resumed THEN
      UPDATE rate_limit.groups AS g
      SET not_before = 0, held_until = 0, lag = 0, refused_job = NULL
      WHERE g.queue = resume.queue AND g.key = resume.key AND g.held_until > clock;
      is_resumed := FOUND;
    END IF;
  END IF;
  IF is_resumed THEN
    UPDATE rate_limit.turns AS t
    SET reserved_until = 0
    WHERE t.queue = resume.queue AND t.key = resume.key AND t.reserved_until > clock;
    PERFORM rate_limit._ring(queue, clock);
  END IF;
  RETURN is_resumed;
END
$function$;
COMMENT ON FUNCTION rate_limit.resume IS 'Starts the jobs of a queue or a group again, after a pause or a handler''s wait.';
