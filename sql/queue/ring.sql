-- Wakes the workers that listen and would sleep beyond this time. A NOTIFY makes commits wait for each other, so it is sent
-- only if a worker sleeps. If the server's queue of notifications is full, a commit that notifies fails: from one half on, none
-- is sent, and workers find the jobs when they poll. `SET pg_limiter.notify = off` turns notifications off. YugabyteDB has
-- none. (This is PL/pgSQL, because a function in SQL would be planned again for each call.)
CREATE OR REPLACE FUNCTION rate_limit._ring(queue_name text, due_at bigint) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  IF EXISTS (
    SELECT
    FROM rate_limit.workers AS w
    WHERE w.queue = queue_name AND w.asleep_until > due_at
  )
    AND pg_catalog.version() NOT LIKE '%-YB-%'
    AND coalesce(pg_catalog.current_setting('pg_limiter.notify', true), '') NOT IN ('off', 'false', 'no', '0')
  THEN
    IF pg_catalog.pg_notification_queue_usage() < 0.5 THEN -- Asked last: it locks the queue.
      PERFORM pg_catalog.pg_notify('rate_limit_jobs', queue_name);
    END IF;
  END IF;
END
$function$;
