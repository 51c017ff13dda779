-- Deletes up to `step` answers that have expired, without waiting for locks. Returns how many it deleted.
CREATE OR REPLACE FUNCTION rate_limit._prune_answers(step integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  pruned bigint := 0;
  expired record;
BEGIN
  IF NOT rate_limit._is_distributed() THEN
    WITH expired AS (
      SELECT a.idempotency_key
      FROM rate_limit.answers AS a
      WHERE a.expires_at <= clock
      ORDER BY a.expires_at
      LIMIT step
      FOR UPDATE SKIP LOCKED
    )
    DELETE FROM rate_limit.answers AS a
    USING expired AS e
    WHERE a.idempotency_key = e.idempotency_key;
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
  END IF;
  FOR expired IN
    SELECT a.idempotency_key
    FROM rate_limit.answers AS a
    WHERE a.expires_at <= clock
    ORDER BY a.expires_at
    LIMIT step
  LOOP
    PERFORM
    FROM rate_limit.answers AS a
    WHERE a.idempotency_key = expired.idempotency_key AND a.expires_at <= clock
    FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND;
    DELETE FROM rate_limit.answers AS a
    WHERE a.idempotency_key = expired.idempotency_key AND a.expires_at <= clock;
    pruned := pruned + FOUND::integer;
  END LOOP;
  RETURN pruned;
END
$function$;
