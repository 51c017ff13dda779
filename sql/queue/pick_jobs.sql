-- Locks the jobs that a claim tries to start, and returns them in the order in which they are to start. Jobs that have paid ahead
-- come first, then the others by (priority, run_at, id). The first job of the lowest priority has its turn after at most so many
-- others: so a stream of urgent jobs leaves some starts to it.
--
--   is_contended   a job has paid ahead, or was denied before; or jobs of a group need different buckets, so that the rounds of a
--                  claim would lock buckets in another order than those of another claim
--   has_slots      a job needs slots
--   turn_id        the job of the lowest priority that is due; NULL: all jobs have the same priority
CREATE OR REPLACE FUNCTION rate_limit._pick_jobs(
  queue_name text, most integer, clock bigint, horizon bigint, groups rate_limit.groups[], due_ids bigint[],
  front_ids bigint[], lowest_id bigint, lowest_priority integer, others integer, limit_names text[], slot_limit_names text[],
  OUT job_ids bigint[], OUT is_contended boolean, OUT has_slots boolean, OUT turn_id bigint
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  keys CONSTANT text[] := ARRAY(SELECT g.key FROM unnest(groups) AS g);
  refused_ids CONSTANT bigint[] := ARRAY(SELECT g.refused_job FROM unnest(groups) AS g);
  highest integer;
  first_ids bigint[]; -- those that have paid ahead
  turn record;
BEGIN
  -- A new statement reads the lines, so that it sees what earlier claims have left.
  SELECT
    -- PostgreSQL 16 and newer sort the rows for count(DISTINCT ..), so the order is given.
    coalesce(array_agg(l.id ORDER BY NOT l.has_paid, greatest(l.run_at, clock), l.priority DESC, l.run_at, l.id), '{}'),
    bool_or(l.has_paid OR l.id = ANY (refused_ids))
      OR max(cardinality(l.limit_keys)) > 1 OR count(DISTINCT l.limit_keys) > count(DISTINCT l.key),
    bool_or(l.has_slots), max(l.priority),
    coalesce(array_agg(l.id) FILTER (WHERE l.has_paid), '{}')
  INTO job_ids, is_contended, has_slots, highest, first_ids
  FROM (
    SELECT
      j.id, j.key, j.limit_keys, j.priority, j.run_at, j.slot_names IS NOT NULL AS has_slots,
      j.paid_until IS NOT NULL AS has_paid
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY (
      (SELECT due_ids) || front_ids || ARRAY(
        SELECT h.id
        FROM unnest((SELECT keys)) AS k
        CROSS JOIN LATERAL (
          SELECT j.id
          FROM rate_limit.jobs AS j
          WHERE j.queue = queue_name AND j.key = k AND j.state = 'available' AND NOT j.awaits_turn
            AND j.limit_names <@ _pick_jobs.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE
            AND j.priority >= coalesce(lowest_priority, j.priority)
          ORDER BY j.priority DESC, j.run_at, j.id
          LIMIT (SELECT most)
        ) AS h
      ))
      AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[]) -- Hidden from the planner: see _job_done.
      AND j.key = ANY ((SELECT keys)::text[]) AND j.run_at <= (SELECT horizon)
      AND (j.expires_at <= (SELECT clock)) IS NOT TRUE -- Another transaction had locked it when expired jobs were cancelled.
    ORDER BY j.paid_until IS NULL, greatest(j.run_at, clock), j.priority DESC, j.run_at, j.id
    LIMIT (SELECT most)
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS l;
  IF lowest_id IS NULL AND NOT coalesce((SELECT bool_or(g.has_line) FROM unnest(groups) AS g), false) THEN
    RETURN;
  END IF;
  SELECT j.id, j.slot_names IS NOT NULL AS has_slots, j.id = ANY (refused_ids) AS is_contended
  INTO turn
  FROM rate_limit.jobs AS j
  WHERE j.id = ANY (
    (SELECT lowest_id) || ARRAY(
      SELECT l.id
      FROM unnest((SELECT groups)) AS g
      CROSS JOIN LATERAL (
        SELECT j.id
        FROM rate_limit.jobs AS j
        WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available'
          AND j.limit_names <@ _pick_jobs.limit_names AND (j.slot_names <@ slot_limit_names) IS NOT FALSE
          AND j.priority = (
            SELECT o.priority
            FROM rate_limit.jobs AS o
            WHERE o.queue = queue_name AND o.key = g.key AND o.state = 'available'
            ORDER BY o.priority, o.run_at DESC, o.id DESC
            LIMIT 1
          )
        ORDER BY j.run_at, j.id
        LIMIT 1
      ) AS l
      WHERE g.has_line
    ))
    AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
    AND j.key = ANY ((SELECT keys)::text[]) AND j.run_at <= (SELECT horizon)
    AND j.priority < (SELECT highest)
    AND j.paid_until IS NULL AND (j.expires_at <= (SELECT clock)) IS NOT TRUE
  ORDER BY j.priority, j.run_at, j.id
  LIMIT 1
  FOR NO KEY UPDATE SKIP LOCKED;
  turn_id := turn.id;
  others := greatest(others, 0) + cardinality(first_ids);
  -- It moves only forward: behind newer jobs of its group, it would start after them.
  IF turn_id IS NOT NULL AND others < most AND coalesce(array_position(job_ids, turn_id), most + 1) > others + 1 THEN
    job_ids := array_remove(job_ids, turn_id);
    job_ids := job_ids[:others] || turn_id || job_ids[others + 1:most - 1];
    has_slots := has_slots OR turn.has_slots;
    is_contended := is_contended OR turn.is_contended;
  END IF;
END
$function$;
