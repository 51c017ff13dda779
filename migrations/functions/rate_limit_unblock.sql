-- rate_limit_unblock(text, text)
-- SHA-256: 382c9c5c7c9ee2ba90277772f3f002e3e5a6cbc77ded9b42c436f4304b7d41a3

-- Ends the block of a key of a gate. Returns whether it was blocked.
CREATE OR REPLACE FUNCTION public.rate_limit_unblock(name text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  was_blocked CONSTANT boolean := public.rate_limit_blocked(name, key) IS NOT NULL;
BEGIN
  PERFORM public.rate_limit_reset(name, key);
  RETURN was_blocked;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_unblock IS 'Ends the block of a key of a gate.';
