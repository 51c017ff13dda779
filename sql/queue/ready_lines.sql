-- Returns the groups whose line is ready, and the jobs that have paid ahead and whose time has come, with their groups. There are
-- up to `most` of each.
CREATE OR REPLACE FUNCTION rate_limit._ready_lines(
  queue_name text, most integer, horizon bigint, limit_names text[], slot_limit_names text[], OUT front_ids bigint[],
  OUT keys text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
  SELECT array_agg(f.id), array_agg(f.key) INTO front_ids, keys
  FROM (
    SELECT j.id, j.key
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.state = 'available' AND j.paid_until <= horizon
      AND j.limit_names <@ _ready_lines.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE
    ORDER BY j.paid_until
    LIMIT most
  ) AS f;
  keys := keys || ARRAY(
    SELECT g.key
    FROM rate_limit.groups AS g
    WHERE g.queue = queue_name AND g.has_line AND g.not_before <= horizon
      -- Leaves out lines that have only jobs with unknown limits. A line without any job is included: the claim removes it.
      AND (
        EXISTS (
          SELECT
          FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available'
            AND j.limit_names <@ _ready_lines.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE
        )
        OR NOT EXISTS (
          SELECT
          FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available'
        )
      )
    ORDER BY g.not_before
    LIMIT most
  );
END
$function$;
