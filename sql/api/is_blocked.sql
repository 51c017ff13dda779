-- Returns the rest of the block of a key of a gate, or NULL if it is not blocked.
--   SELECT rate_limit.is_blocked('banned', '203.0.113.7');
CREATE OR REPLACE FUNCTION rate_limit.is_blocked(name text, key text) RETURNS interval LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  rest bigint; -- in microseconds
BEGIN
  SELECT r.ts - r.value - rate_limit._clock()
  INTO rest
  FROM rate_limit.rate_limits AS r
  WHERE r.name = is_blocked.name AND r.key = is_blocked.key AND r.shard = 0
    AND r.detail[1] = -2;
  IF (rest > 0) IS NOT TRUE THEN -- A block outlasts a change of the stored limit to another kind.
    PERFORM rate_limit._require_gate(name, key);
  END IF;
  RETURN CASE WHEN rest > 0 THEN rest * interval '1 microsecond' END;
END
$function$;
COMMENT ON FUNCTION rate_limit.is_blocked IS 'Returns the rest of the block of a key of a gate, or NULL.';
