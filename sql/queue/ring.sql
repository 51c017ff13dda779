-- Wakes the workers that listen and would sleep beyond this time. A NOTIFY makes commits wait for each other, so it is sent
-- only if a worker sleeps. (This is PL/pgSQL, because a function in SQL would be planned again for each call.)
CREATE OR REPLACE FUNCTION rate_limit._ring(queue_name text, due_at bigint) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  IF EXISTS (
    SELECT
    FROM rate_limit.workers AS w
    WHERE w.queue = queue_name AND w.asleep_until > due_at
  )
  THEN
    PERFORM rate_limit._notify('rate_limit_jobs', queue_name);
  END IF;
END
$function$;
