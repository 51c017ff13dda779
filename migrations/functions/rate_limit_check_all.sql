-- rate_limit_check_all(jsonb, boolean)
-- SHA-256: c6e792cecf226bcb881f70cc3da3c8c32bab252d7e7a2c1276532f2797feb6fc

-- Decides like rate_limit_all, and writes nothing.
CREATE OR REPLACE FUNCTION public.rate_limit_check_all(
  calls jsonb, reserve boolean DEFAULT false, OUT ok boolean, OUT retry_after interval, OUT denied_by text[], OUT limits jsonb
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.denied_by, s.limits
  FROM public.rate_limit_several('check', calls, reserve) AS s
$function$;
COMMENT ON FUNCTION public.rate_limit_check_all IS 'Decides like rate_limit_all, and writes nothing.';
