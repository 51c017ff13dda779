-- Prepares a claim, and returns whether there was something to do. It takes back the payments of jobs that were cancelled
-- after they had paid ahead, and lets jobs be found again that wait for a limit which this worker knows (blocked_by). The
-- cancellation itself takes no payment back: its transaction may stay open for long, and claims must not wait for it.
CREATE OR REPLACE FUNCTION rate_limit._prepare_claim(
  queue_name text, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], slot_limit_names text[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  job rate_limit.jobs;
  has_unpaid boolean;
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
  has_unpaid := FOUND;
  IF NOT EXISTS (
    SELECT
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.blocked_by IS NOT NULL
  )
  THEN
    RETURN has_unpaid;
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
  RETURN has_unpaid OR FOUND;
END
$function$;
