-- rate_limit_lock_slots(bigint[], rate_limit_groups[], bigint, text[])
-- SHA-256: 2d88a4e95917a28b47fec4ba22885abc5592b0fac4b995acb116dc8a335674c3

-- Locks the buckets of slots that the jobs at hand need, or that these groups wait for, and returns their rows. It waits for
-- no lock: a row that another transaction has locked is returned without `ts`. A bucket without a row gets one, so that it can
-- be locked.
--
-- A claim decides on locked rows and writes them even if it takes no slot. So a release sees every group that waits for
-- its slots: it either comes before the decision, or after the claim's commit. (Under REPEATABLE READ and SERIALIZABLE the
-- written row makes the release start again with a new snapshot.)
CREATE OR REPLACE FUNCTION public.rate_limit_lock_slots(
  job_ids bigint[], groups public.rate_limit_groups[], clock bigint, slot_limit_names text[]
) RETURNS public.rate_limits[] LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  slots record;
  bucket public.rate_limits;
  buckets public.rate_limits[] := '{}';
BEGIN
  FOR slots IN
    SELECT u.name, u.key
    FROM public.rate_limit_jobs AS j
    CROSS JOIN LATERAL unnest(j.slot_names, j.slot_keys) AS u (name, key)
    WHERE j.id = ANY (job_ids) AND j.slot_names IS NOT NULL
    UNION
    SELECT g.slot_name, g.slot_key
    FROM unnest(groups) AS g
    WHERE g.slot_name = ANY (slot_limit_names)
  LOOP
    SELECT r.* INTO bucket
    FROM public.rate_limits AS r
    WHERE r.name = slots.name AND r.key = slots.key AND r.shard = 0
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
      INSERT INTO public.rate_limits AS r (name, key, value, ts, idle_at, earlier_counts)
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
COMMENT ON FUNCTION public.rate_limit_lock_slots IS 'Locks the buckets of the slots that a claim decides on.';
