-- rate_limit_unblock(text, text)
-- SHA-256: 031836640ed8b773ac6a3a960d94a2dcc11e15305258f4d6bde5ed2f27b38822

-- Ends the block of a key of a gate. Returns whether it was blocked.
CREATE OR REPLACE FUNCTION public.rate_limit_unblock(name text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  ends_at bigint;
BEGIN
  IF name IS NULL OR key IS NULL THEN
    RAISE EXCEPTION 'invalid_key: rate_limit_unblock(name, key) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use rate_limit_reset(name) to unblock every key of a gate.';
  END IF;
  DELETE FROM public.rate_limits AS r
  WHERE r.name = rate_limit_unblock.name AND r.key = rate_limit_unblock.key AND r.shard = 0
  RETURNING r.idle_at INTO ends_at;
  RETURN coalesce(ends_at > public.rate_limit_clock(), false);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_unblock IS 'Ends the block of a key of a gate.';
