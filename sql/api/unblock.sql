-- Ends the block of a key of a gate. Returns whether it was blocked.
CREATE OR REPLACE FUNCTION rate_limit.unblock(name text, key text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  was_blocked CONSTANT boolean := rate_limit.is_blocked(name, key) IS NOT NULL;
BEGIN
  PERFORM rate_limit.reset(name, key);
  RETURN was_blocked;
END
$function$;
