-- Ends the block of a key of a gate. Returns whether it was blocked. It deletes only a block, and no tokens or slots that a
-- limit of another kind has stored under this name.
CREATE OR REPLACE FUNCTION rate_limit.unblock(name text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  was_blocked boolean;
BEGIN
  DELETE FROM rate_limit.rate_limits AS r
  WHERE r.name = unblock.name AND r.key = unblock.key AND r.shard = 0 AND r.detail[1] = -2
  RETURNING r.ts - r.value > rate_limit._clock() INTO was_blocked;
  IF was_blocked IS NOT TRUE THEN
    PERFORM rate_limit._require_gate(name, key);
  END IF;
  RETURN coalesce(was_blocked, false);
END
$function$;
COMMENT ON FUNCTION rate_limit.unblock IS 'Ends the block of a key of a gate.';
