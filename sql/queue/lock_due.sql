-- Finds the first due jobs of a queue, and locks their groups and the groups with a line that is ready. Then it locks
-- the due jobs. It skips rows that other transactions have locked. Jobs that have been due for 10 s, and need a limit that the
-- worker does not know, are taken out of the way (blocked_by), so that it does not read them again and again.
--
--   most     the most due jobs; also the most groups with lines, and the most jobs that have paid ahead
--   horizon  jobs with a run_at up to this time are due
--   results  groups: the locked groups. due_ids: the locked due jobs, which are scheduled. front_ids: jobs that have paid
--            ahead and whose time has come, not locked. lowest_priority: if not all due jobs were read, the priority of
--            the last one that was. lowest_id: the first due job of the lowest priority, if there are several priorities.
--            blocked_names: what the jobs need that were taken out of the way
CREATE OR REPLACE FUNCTION rate_limit._lock_due(
  queue_name text, most integer, horizon bigint, limit_names text[], slot_limit_names text[],
  OUT groups rate_limit.groups[], OUT due_ids bigint[], OUT front_ids bigint[], OUT lowest_priority integer,
  OUT lowest_id bigint, OUT blocked_names text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  late CONSTANT bigint := horizon - 10000000;
  known_names CONSTANT text[] := limit_names || ARRAY(SELECT n || '/slots' FROM unnest(slot_limit_names) AS n);
  reach bigint := most; -- the most due jobs to read
  seen bigint; -- how many were read
  unknown_ids bigint[]; -- jobs that have been due for long, and that this worker cannot start
  rounds integer := 0;
  level_jobs record;
  level bigint; -- the loop reads one priority after the other, from the highest down
  highest bigint; -- the highest priority with due jobs
  lowest record;
  due_keys text[];
  hidden_keys text[]; -- the groups in which another worker has just blocked jobs that this worker knows
  other_keys text[]; -- the groups of jobs that have paid ahead, and of lines that are ready
  keys text[];
BEGIN
  SELECT l.front_ids, l.keys INTO front_ids, other_keys
  FROM rate_limit._ready_lines(queue_name, most, horizon, limit_names, slot_limit_names) AS l;

  -- The first jobs of some lines that have been ready for long.
  unknown_ids := ARRAY(
    SELECT j.id
    FROM (
      SELECT g.key
      FROM rate_limit.groups AS g
      WHERE g.queue = (SELECT queue_name) AND g.has_line AND g.not_before <= (SELECT late)
      ORDER BY g.not_before
      LIMIT 20
    ) AS g
    CROSS JOIN LATERAL (
      SELECT
        j.id, j.limit_names <@ _lock_due.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE AS is_known
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available' AND NOT j.awaits_turn
      ORDER BY j.priority DESC, j.run_at, j.id
      LIMIT 20
    ) AS j
    WHERE NOT j.is_known
  );
  IF unknown_ids <> '{}' THEN
    blocked_names := rate_limit._block_jobs(unknown_ids, limit_names, slot_limit_names);
  END IF;
  -- Read the due jobs without a lock first. An exclusive lock on them before the lock on the group would let other claims start
  -- later jobs of the group first, and a shared lock would create a multixact for each row.
  LOOP
    -- Groups with blocked jobs that this worker can start are left out, before and after others let these jobs be found again:
    -- later jobs would overtake them.
    hidden_keys := ARRAY(
      SELECT b.key
      FROM rate_limit.jobs AS b
      WHERE b.queue = queue_name AND b.blocked_by IS NOT NULL AND b.blocked_by = ANY ((SELECT known_names)::text[])
    );
    due_ids := '{}';
    due_keys := '{}';
    unknown_ids := '{}';
    seen := 0;
    level := 2147483648;
    highest := NULL;
    LOOP
      SELECT j.priority INTO level
      FROM rate_limit.jobs AS j
      WHERE j.queue = queue_name AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
        AND j.priority < level
      ORDER BY j.priority DESC
      LIMIT 1;
      EXIT WHEN NOT FOUND;
      SELECT
        array_agg(d.id) FILTER (WHERE d.is_known) AS ids, array_agg(d.key) FILTER (WHERE d.is_known) AS keys,
        array_agg(d.id) FILTER (WHERE NOT d.is_known AND d.run_at <= late) AS unknown_ids, count(*) AS seen
      INTO level_jobs
      FROM (
        SELECT
          j.id, j.key, j.run_at,
          j.limit_names <@ _lock_due.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE AS is_known
        FROM rate_limit.jobs AS j
        WHERE j.queue = (SELECT queue_name) AND j.state = 'scheduled' AND j.blocked_by IS NULL AND NOT j.awaits_turn
          AND j.priority = (SELECT level) AND j.run_at <= (SELECT horizon)
        ORDER BY j.run_at, j.id
        LIMIT (SELECT reach - seen)
      ) AS d;
      due_ids := due_ids || level_jobs.ids;
      due_keys := due_keys || level_jobs.keys;
      unknown_ids := unknown_ids || level_jobs.unknown_ids;
      highest := CASE WHEN seen = 0 AND level_jobs.seen > 0 THEN level ELSE highest END;
      seen := seen + level_jobs.seen;
      EXIT WHEN seen >= reach;
    END LOOP;
    IF unknown_ids <> '{}' AND rounds < 10 THEN
      blocked_names := coalesce(blocked_names, '{}') || rate_limit._block_jobs(unknown_ids, limit_names, slot_limit_names);
      rounds := rounds + 1;
      reach := greatest(reach, 1000);
      CONTINUE;
    END IF;
    lowest_priority := CASE WHEN seen >= reach THEN level END;
    lowest := rate_limit._lowest_due(queue_name, highest, horizon, limit_names, slot_limit_names);
    lowest_id := lowest.id;
    due_ids := due_ids || array_remove(ARRAY[lowest_id], NULL);
    due_keys := due_keys || array_remove(ARRAY[lowest.key], NULL);
    keys := ARRAY(SELECT DISTINCT k FROM unnest(due_keys || other_keys) AS k ORDER BY k);
    EXIT WHEN keys = '{}' AND lowest_priority IS NULL;

    INSERT INTO rate_limit.groups (queue, key)
    SELECT queue_name, k
    FROM unnest((SELECT keys)) AS k
    WHERE NOT EXISTS (
      SELECT
      FROM rate_limit.groups AS g
      WHERE g.queue = (SELECT queue_name) AND g.key = k
    )
    ORDER BY k
    ON CONFLICT DO NOTHING;
    groups := ARRAY(
      SELECT g
      FROM unnest((SELECT keys)) AS k (key)
      JOIN rate_limit.groups AS g ON g.queue = (SELECT queue_name) AND g.key = k.key
      ORDER BY g.key
      FOR NO KEY UPDATE OF g SKIP LOCKED
    );
    -- Others may have blocked jobs since the jobs were read.
    hidden_keys := hidden_keys || ARRAY(
      SELECT b.key
      FROM rate_limit.jobs AS b
      WHERE b.queue = queue_name AND b.blocked_by IS NOT NULL AND b.blocked_by = ANY ((SELECT known_names)::text[])
    );
    groups := ARRAY(SELECT g FROM unnest(groups) AS g WHERE g.key <> ALL (hidden_keys));
    keys := ARRAY(SELECT g.key FROM unnest(groups) AS g);
    due_ids := ARRAY(
      SELECT j.id
      FROM rate_limit.jobs AS j
      WHERE j.id = ANY ((SELECT due_ids)::bigint[]) AND j.state = (SELECT 'scheduled') AND j.run_at <= (SELECT horizon)
        AND j.key = ANY ((SELECT keys)::text[])
      FOR NO KEY UPDATE SKIP LOCKED
    );
    EXIT WHEN lowest_priority IS NULL;
    -- A cancellation's transaction may stay open for long, and the jobs that it has locked must not hide other jobs. Jobs of
    -- groups that other claims have locked count as found: claims are short, and there may be any number of such jobs.
    EXIT WHEN most <= cardinality(due_ids) + (SELECT count(*) FROM unnest(due_keys) AS k WHERE k <> ALL (keys || hidden_keys));
    reach := 2 * reach;
  END LOOP;
END
$function$;
