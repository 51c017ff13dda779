-- Returns which of these buckets have a row that another transaction has locked; NULL for a bucket without a row. It waits for
-- no lock. A batch that has waited too long for a lock calls it, to move the calls on locked rows out of the lane.
CREATE OR REPLACE FUNCTION rate_limit._held(bucket_names text[], bucket_keys text[]) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  held boolean[];
  last_shard integer;
BEGIN
  FOR nth IN 1 .. coalesce(cardinality(bucket_names), 0) LOOP
    SELECT r.shards - 1
    INTO last_shard
    FROM rate_limit.rate_limits AS r
    WHERE r.name = bucket_names[nth] AND r.key = bucket_keys[nth] AND r.shard = 0;
    held[nth] := CASE WHEN FOUND THEN false END;
    FOR nth_shard IN 0 .. coalesce(last_shard, -1) LOOP
      PERFORM
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_names[nth] AND r.key = bucket_keys[nth] AND r.shard = nth_shard
      FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND THEN
        held[nth] := true;
        EXIT;
      END IF;
    END LOOP;
  END LOOP;
  RETURN held;
END
$function$;
