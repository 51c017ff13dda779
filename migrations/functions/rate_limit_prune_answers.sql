-- rate_limit_prune_answers(integer)
-- SHA-256: c24c53779151a454e32e527f05458a75ec045ba28741da88b89f68d4c985fe9f

-- Deletes up to `step` answers that have expired, without waiting for locks. Returns how many it deleted.
CREATE OR REPLACE FUNCTION public.rate_limit_prune_answers(step integer DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  pruned bigint;
BEGIN
  WITH expired AS (
    SELECT a.idempotency_key
    FROM public.rate_limit_answers AS a
    WHERE a.expires_at <= clock
    ORDER BY a.expires_at
    LIMIT step
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM public.rate_limit_answers AS a
  USING expired AS e
  WHERE a.idempotency_key = e.idempotency_key;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_prune_answers IS 'Deletes answers to idempotency keys that have expired.';
