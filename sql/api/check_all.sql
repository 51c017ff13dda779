-- Decides like limit_all, and writes nothing.
CREATE OR REPLACE FUNCTION rate_limit.check_all(
  calls jsonb, reserve boolean DEFAULT false, OUT ok boolean, OUT retry_after interval, OUT denied_by text[], OUT limits jsonb
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.denied_by, s.limits
  FROM rate_limit._several('check', rate_limit._defined(calls), reserve) AS s
$function$;
