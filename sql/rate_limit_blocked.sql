-- Returns the rest of the block of a key of a gate, or NULL if it is not blocked.
--   SELECT rate_limit_blocked('banned', '203.0.113.7');
CREATE OR REPLACE FUNCTION public.rate_limit_blocked(name text, key text) RETURNS interval LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  rest bigint; -- in microseconds
BEGIN
  PERFORM public.rate_limit_validate_item(NULL, name, key, 'token_bucket', 1, '1 microsecond', 0, 0, NULL, NULL, 1);
  SELECT r.ts - r.value - greatest(public.rate_limit_clock(), r.ts) INTO rest
  FROM public.rate_limits AS r
  WHERE r.name = rate_limit_blocked.name AND r.key = rate_limit_blocked.key AND r.shard = 0;
  RETURN CASE WHEN rest > 0 THEN rest * interval '1 microsecond' END;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_blocked IS 'Returns the rest of the block of a key of a gate, or NULL.';
