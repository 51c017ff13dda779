-- Puts due jobs that cannot start yet into the lines of their groups. There they are not read before their groups are. Returns
-- whether there were any.
--
--   groups       the groups that the claim has locked, as they were; no job could start in a group with a not_before after
--                `horizon`
--   due_ids      the due jobs that the claim has locked
--   stopped_ids  the jobs that the limits denied, one of each group that stops; stopped_ats: when to claim from the group again
--   waiting      the groups that stop because slots are taken, as they are to be
CREATE OR REPLACE FUNCTION rate_limit._stop_groups(
  queue_name text, horizon bigint, groups rate_limit.groups[], due_ids bigint[], started_ids bigint[],
  stopped_ids bigint[], stopped_ats bigint[], waiting rate_limit.groups[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  shut_keys CONSTANT text[] := ARRAY(SELECT g.key FROM unnest(groups) AS g WHERE g.not_before > horizon);
  stopped_keys text[] := ARRAY(SELECT j.key FROM unnest((SELECT stopped_ids)) AS s (id) JOIN rate_limit.jobs AS j ON j.id = s.id);
  left_keys text[]; -- the groups that do not wait for slots any more
  has_parked boolean := false;
BEGIN
  IF waiting IS NOT NULL THEN
    left_keys := ARRAY(
      SELECT g.key
      FROM unnest(groups) AS g
      WHERE g.slot_name IS NOT NULL AND g.key <> ALL (shut_keys || ARRAY(SELECT w.key FROM unnest(waiting) AS w))
    );
    IF left_keys <> '{}' THEN
      UPDATE rate_limit.groups AS g
      SET slot_name = NULL, slot_key = NULL, slot_count = NULL, slot_since = NULL, slot_pause = NULL
      WHERE g.queue = queue_name AND g.key = ANY ((SELECT left_keys)::text[]);
    END IF;
    stopped_keys := stopped_keys || ARRAY(SELECT w.key FROM unnest(waiting) AS w);
    UPDATE rate_limit.groups AS g
    SET
      has_line = true,
      -- The first of the groups that wait for a bucket looks when a lease ends. The others are woken. They look some leases later
      -- in any case, because a claim passes slots on only to groups that no other claim has locked at that moment.
      not_before = CASE
        WHEN w.slot_pause IS NULL AND EXISTS (
          SELECT
          FROM rate_limit.groups AS o
          WHERE o.slot_name = w.slot_name AND o.slot_key = w.slot_key AND o.queue = queue_name
            AND (o.slot_since, o.key) < (w.slot_since, w.key)
        )
        THEN rate_limit._clock()
          + ((1 + random()) * least(greatest(4 * (w.not_before - rate_limit._clock()), 1000000), 60000000))::bigint
        ELSE w.not_before
      END,
      lag = greatest(rate_limit._clock() - w.slot_since, 0),
      slot_name = w.slot_name,
      slot_key = w.slot_key,
      slot_count = w.slot_count,
      slot_since = w.slot_since,
      slot_pause = w.slot_pause
    FROM unnest((SELECT waiting)) AS w
    WHERE g.queue = queue_name AND g.key = w.key;
  END IF;
  IF shut_keys <> '{}' THEN -- All their due jobs: there may be many, and they are in the way of others.
    due_ids := due_ids || ARRAY(
      SELECT j.id
      FROM unnest((SELECT shut_keys)) AS s (key)
      JOIN rate_limit.jobs AS j ON j.key = s.key
      WHERE j.queue = (SELECT queue_name) AND j.state = 'scheduled' AND j.state IN ('scheduled', 'available')
        AND j.run_at <= (SELECT horizon) AND j.blocked_by IS NULL AND NOT j.awaits_turn
      LIMIT 1000
      FOR NO KEY UPDATE OF j SKIP LOCKED
    );
  END IF;
  IF shut_keys <> '{}' OR stopped_keys <> '{}' THEN
    UPDATE rate_limit.jobs AS j
    SET state = 'available'
    FROM unnest((SELECT due_ids)) AS d (id)
    WHERE j.id = d.id AND j.id <> ALL (started_ids) AND j.state = (SELECT 'scheduled')
      AND j.key = ANY ((SELECT shut_keys || stopped_keys)::text[]);
    has_parked := FOUND;
    UPDATE rate_limit.groups AS g
    SET has_line = true, not_before = s.at, lag = greatest(s.at - j.run_at, 0), refused_job = j.id
    FROM unnest((SELECT stopped_ids), stopped_ats) AS s (id, at)
    JOIN rate_limit.jobs AS j ON j.id = s.id
    WHERE g.queue = (SELECT queue_name) AND g.key = j.key;
    UPDATE rate_limit.groups AS g
    SET has_line = true
    FROM unnest((SELECT shut_keys)) AS s (key)
    WHERE g.queue = (SELECT queue_name) AND g.key = s.key AND NOT g.has_line;
  END IF;
  UPDATE rate_limit.groups AS g
  SET has_line = false, lag = 0
  FROM unnest((SELECT groups)) AS o
  WHERE g.queue = (SELECT queue_name) AND g.key = o.key AND o.has_line AND o.key <> ALL (shut_keys || stopped_keys)
    AND NOT EXISTS (
      SELECT
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available' AND j.id <> ALL (started_ids)
    );
  RETURN has_parked;
END
$function$;
