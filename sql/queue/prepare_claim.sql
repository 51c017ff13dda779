-- Prepares a claim, and returns whether there was something to do. It takes back the payments of jobs that have paid ahead and
-- were then cancelled, or whose group was paused; it cancels jobs that have expired, and lets jobs be found again that wait for
-- a limit which this worker knows (blocked_by). A cancellation and a pause take no payment back: their transactions may stay open
-- for long, and claims must not wait for them.
CREATE OR REPLACE FUNCTION rate_limit._prepare_claim(
  queue_name text, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], slot_limit_names text[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  job rate_limit.jobs;
  has_changed boolean;
  late_ids bigint[];
  blocked_ids bigint[];
BEGIN
  FOR job IN
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY (ARRAY(
        SELECT c.id
        FROM rate_limit.jobs AS c
        WHERE c.queue = queue_name AND c.state = 'cancelled' AND c.paid_until IS NOT NULL
          AND (c.limit_names <@ _prepare_claim.limit_names OR c.paid_until <= (SELECT clock))
        LIMIT 100
      ) || ARRAY(
        SELECT p.id
        FROM rate_limit.jobs AS p
        JOIN rate_limit.groups AS g ON g.queue = p.queue AND g.key = p.key
        WHERE p.queue = queue_name AND p.state = 'available' AND p.paid_until > (SELECT clock) AND g.held_before IS NOT NULL
          AND p.limit_names <@ _prepare_claim.limit_names
        LIMIT 100
      ))
      AND j.paid_until IS NOT NULL
    ORDER BY j.limit_names[j.paid_item] COLLATE "C", j.limit_keys[j.paid_item] COLLATE "C"
    FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    PERFORM rate_limit._unpay(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END LOOP;
  has_changed := FOUND;
  late_ids := ARRAY(
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.queue = (SELECT queue_name) AND j.expires_at <= (SELECT clock) AND j.state IN ('scheduled', 'available')
    ORDER BY j.expires_at
    LIMIT 1000
  );
  IF late_ids <> '{}' THEN
    has_changed := rate_limit._expire_jobs(queue_name, late_ids) OR has_changed;
  END IF;
  IF NOT EXISTS (
    SELECT
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.blocked_by IS NOT NULL
  )
  THEN
    RETURN has_changed;
  END IF;
  -- All of them before any job starts, so that none overtakes another one of its group.
  blocked_ids := ARRAY(
    SELECT b.id
    FROM unnest(_prepare_claim.limit_names || ARRAY(SELECT n || '/slots' FROM unnest(slot_limit_names) AS n)) AS n (name)
    CROSS JOIN LATERAL (
      SELECT b.id
      FROM rate_limit.jobs AS b
      WHERE b.queue = queue_name AND b.blocked_by = n.name
      LIMIT 1000
      FOR NO KEY UPDATE SKIP LOCKED
    ) AS b
    LIMIT 1000
  );
  IF blocked_ids <> '{}' THEN
    UPDATE rate_limit.jobs AS j
    SET blocked_by = NULL
    WHERE j.id = ANY ((SELECT blocked_ids)::bigint[]);
    -- Their groups have their turns now. Until then, workers that do not know the limit would block the jobs again.
    WITH due AS (
      SELECT t.queue, t.key
      FROM rate_limit.jobs AS j
      JOIN rate_limit.turns AS t ON t.queue = j.queue AND t.key = j.key
      WHERE j.id = ANY ((SELECT blocked_ids)::bigint[]) AND j.awaits_turn
      FOR NO KEY UPDATE OF t SKIP LOCKED
    )
    UPDATE rate_limit.turns AS t
    SET wanted_at = least(t.wanted_at, clock), reserved_until = least(t.reserved_until, clock)
    FROM due AS d
    WHERE t.queue = d.queue AND t.key = d.key;
    -- Without a row of the group, _block_jobs does not see whether a claim has locked it.
    INSERT INTO rate_limit.groups (queue, key)
    SELECT DISTINCT j.queue, j.key
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY ((SELECT blocked_ids)::bigint[]) AND NOT EXISTS (
      SELECT
      FROM rate_limit.groups AS g
      WHERE g.queue = j.queue AND g.key = j.key
    )
    ORDER BY j.queue, j.key
    ON CONFLICT DO NOTHING;
  END IF;
  RETURN has_changed OR blocked_ids <> '{}';
END
$function$;
