-- Decides calls on one token bucket like rate_limit_decide_one, and returns the same. Clients of earlier releases
-- and rate_limit_enqueue call it.
CREATE OR REPLACE FUNCTION public.rate_limit_take(
  name text, key text, rate double precision, period double precision, capacity double precision, count double precision,
  times integer, shards integer, reserves boolean DEFAULT false, max_reserved double precision DEFAULT NULL
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
BEGIN
  RETURN public.rate_limit_decide_one(
    name, key, 'token_bucket', rate, period::bigint, capacity, max_reserved, NULL, 1, shards, count, times, reserves);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take IS
  'Decides calls on one token bucket; called by clients of earlier releases.';
