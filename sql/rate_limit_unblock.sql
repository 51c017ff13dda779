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
