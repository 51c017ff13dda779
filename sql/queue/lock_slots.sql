-- Locks the buckets of slots that the jobs at hand need, or that these groups wait for, and returns their rows. It waits for
-- no lock: a row that another transaction has locked is returned without `ts`. A bucket without a row gets one, so that it can
-- be locked.
--
-- A claim decides on locked rows and writes them even if it takes no slot. So a release sees every group that waits for
-- its slots: it either comes before the decision, or after the claim's commit. (Under REPEATABLE READ and SERIALIZABLE the
-- written row makes the release start again with a new snapshot.)
CREATE OR REPLACE FUNCTION rate_limit._lock_slots(
  job_ids bigint[], groups rate_limit.groups[], clock bigint, slot_limit_names text[]
) RETURNS rate_limit.rate_limits[] LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  slots record;
  bucket rate_limit.rate_limits;
  buckets rate_limit.rate_limits[] := '{}';
BEGIN
  FOR slots IN
    SELECT u.name, u.key
    FROM rate_limit.jobs AS j
    CROSS JOIN LATERAL unnest(j.slot_names, j.slot_keys) AS u (name, key)
    WHERE j.id = ANY ((SELECT job_ids)::bigint[]) AND j.slot_names IS NOT NULL
    UNION
    SELECT g.slot_name, g.slot_key
    FROM unnest((SELECT groups)) AS g
    WHERE g.slot_name = ANY (slot_limit_names)
  LOOP
    SELECT r.* INTO bucket
    FROM rate_limit.rate_limits AS r
    WHERE r.name = slots.name AND r.key = slots.key AND r.shard = 0
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      INSERT INTO rate_limit.rate_limits AS r (name, key, value, ts, idle_at, detail)
      VALUES (slots.name, slots.key, 0, clock, clock, ARRAY[-1])
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING
      RETURNING r.* INTO bucket;
      IF NOT FOUND THEN
        bucket := NULL;
        bucket.name := slots.name;
        bucket.key := slots.key;
      END IF;
    END IF;
    buckets := buckets || bucket;
  END LOOP;
  RETURN buckets;
END
$function$;
