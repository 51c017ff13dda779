-- Returns the first due job of the lowest priority of a queue that has one, if that is lower than `highest`. It passes over up to
-- 100 jobs of each priority, which have limits that the worker does not know.
CREATE OR REPLACE FUNCTION rate_limit._lowest_due(
  queue_name text, highest bigint, horizon bigint, limit_names text[], slot_limit_names text[], OUT id bigint, OUT key text
) LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  level bigint := -2147483649; -- the loop reads one priority after the other, from the lowest up
BEGIN
  LOOP
    SELECT j.priority INTO level
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
      AND j.priority > level
    ORDER BY j.priority, j.run_at DESC, j.id DESC
    LIMIT 1;
    EXIT WHEN level >= highest IS NOT FALSE;
    SELECT d.id, d.key INTO id, key
    FROM (
      SELECT j.*
      FROM rate_limit.jobs AS j
      WHERE j.queue = (SELECT queue_name) AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
        AND j.priority = (SELECT level) AND j.run_at <= (SELECT horizon)
      ORDER BY j.run_at, j.id
      LIMIT 100
    ) AS d
    WHERE d.limit_names <@ _lowest_due.limit_names AND (d.slot_names <@ slot_limit_names) IS NOT FALSE
    ORDER BY d.run_at, d.id
    LIMIT 1;
    EXIT WHEN FOUND;
  END LOOP;
END
$function$;
