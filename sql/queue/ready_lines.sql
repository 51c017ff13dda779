-- Returns the groups whose line is ready, and the jobs that have paid ahead and whose time has come, with their groups. There are
-- up to `most` of each. Groups that wait for one token are ready at the same time: so of the first 20 ready groups, those of the
-- highest priorities are returned, and the first one of the lowest priority, which may have its turn.
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
    WHERE j.queue = (SELECT queue_name) AND j.state = 'available' AND j.paid_until <= (SELECT horizon)
      AND j.limit_names <@ _ready_lines.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE
    ORDER BY j.paid_until
    LIMIT (SELECT most)
  ) AS f;
  keys := keys || ARRAY(
    SELECT r.key
    FROM (
      SELECT
        l.key, l.priority, max(l.priority) OVER () AS highest,
        row_number() OVER (ORDER BY l.priority DESC NULLS LAST, l.not_before) AS nth,
        row_number() OVER (ORDER BY l.priority, l.not_before) AS nth_from_below
      FROM (
        SELECT
          g.key, g.not_before,
          (
            SELECT j.priority
            FROM rate_limit.jobs AS j
            WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available' AND NOT j.awaits_turn
            ORDER BY j.priority DESC, j.run_at, j.id
            LIMIT 1
          ) AS priority
        FROM rate_limit.groups AS g
        WHERE g.queue = (SELECT queue_name) AND g.has_line AND g.not_before <= (SELECT horizon)
          -- Leaves out lines that have only jobs with unknown limits.
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
        LIMIT (SELECT greatest(most, 20))
      ) AS l
    ) AS r
    -- The claim removes lines without jobs.
    WHERE r.nth <= most OR r.priority IS NULL OR (r.nth_from_below = 1 AND r.priority < r.highest)
  );
END
$function$;
