-- Sends a notification that speeds something up. Nothing depends on it, because receivers also poll. If the server's queue of
-- notifications is full, a commit that notifies fails: from one half on, none is sent. `SET pg_limiter.notify = off` turns
-- notifications off. YugabyteDB has none.
CREATE OR REPLACE FUNCTION rate_limit._notify(channel text, payload text) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  IF pg_catalog.version() NOT LIKE '%-YB-%'
    AND coalesce(pg_catalog.current_setting('pg_limiter.notify', true), '') NOT IN ('off', 'false', 'no', '0')
  THEN
    IF pg_catalog.pg_notification_queue_usage() < 0.5 THEN -- Asked last: it locks the queue.
      PERFORM pg_catalog.pg_notify(channel, payload);
    END IF;
  END IF;
END
$function$;
