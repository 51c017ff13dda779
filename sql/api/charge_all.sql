-- Takes tokens under several stored limits, whatever their balances.
CREATE OR REPLACE FUNCTION rate_limit.charge_all(calls jsonb, OUT limits jsonb) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.limits
  FROM rate_limit._several('charge', rate_limit._defined(calls), false) AS s
$function$;
