-- Gives tokens back under several stored limits, up to their capacities.
CREATE OR REPLACE FUNCTION rate_limit.credit_all(calls jsonb, OUT limits jsonb) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.limits
  FROM rate_limit._several('credit', rate_limit._defined(calls), false) AS s
$function$;
