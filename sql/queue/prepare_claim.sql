-- Prepares a claim, and returns whether there was something to do. It cancels jobs that have expired, takes back the payments of
-- jobs that were cancelled after they had paid ahead, and lets jobs be found again that wait for a limit which this worker knows
-- (blocked_by). The cancellation of a job takes no payment back: its transaction may stay open for long, and claims must not wait
-- for it.
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
  expired record;
BEGIN
  FOR job IN
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.state = 'cancelled' AND j.paid_until IS NOT NULL
      AND (j.limit_names <@ _prepare_claim.limit_names OR j.paid_until <= clock)
    ORDER BY j.limit_names[j.paid_item] COLLATE "C", j.limit_keys[j.paid_item] COLLATE "C"
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    PERFORM rate_limit._unpay(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END LOOP;
  has_changed := FOUND;
  -- Their reserved time is over, as a rule, so no token is returned. If a group waits for such a job, workers look at it again.
  WITH late AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.expires_at <= clock AND j.state IN ('scheduled', 'available')
    ORDER BY j.expires_at
    LIMIT 1000
    FOR NO KEY UPDATE SKIP LOCKED
  ),
  cancelled AS (
    UPDATE rate_limit.jobs AS j
    SET state = 'cancelled', finished_at = clock, blocked_by = NULL, last_error = 'expired: it was older than its max_age'
    FROM late AS l
    WHERE j.id = l.id
    RETURNING j.id, j.key, j.run_at
  )
  SELECT array_agg(c.id) AS ids, array_agg(c.key) AS keys, array_agg(c.run_at) AS run_ats INTO expired
  FROM cancelled AS c;
  IF expired.ids IS NOT NULL THEN
    UPDATE rate_limit.groups AS g
    SET not_before = g.held_until, slot_pause = NULL
    FROM (
      SELECT g.key
      FROM rate_limit.groups AS g
      WHERE g.queue = queue_name AND g.key = ANY (expired.keys) AND g.not_before > g.held_until
        AND (g.slot_since = ANY (expired.run_ats) OR g.refused_job = ANY (expired.ids))
      FOR NO KEY UPDATE SKIP LOCKED
    ) AS w
    WHERE g.queue = queue_name AND g.key = w.key;
    has_changed := true;
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
  UPDATE rate_limit.jobs AS j
  SET blocked_by = NULL
  FROM (
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
  ) AS k
  WHERE j.id = k.id;
  RETURN has_changed OR FOUND;
END
$function$;
