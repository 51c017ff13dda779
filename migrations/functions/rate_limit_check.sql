-- rate_limit_check(text, text, text, double precision, interval, double precision, double precision, boolean, double precision, interval, integer, integer, timestamp with time zone)
-- SHA-256: fe1fe377da3c88444a6d6d55f512bf47519a26af680637459017ab3f1c61d807

-- Decides like rate_limit, and writes nothing.
CREATE OR REPLACE FUNCTION public.rate_limit_check(
  name text, key text, kind text, rate double precision, period interval, capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1, reserve boolean DEFAULT false, max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL, resolution integer DEFAULT NULL, shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL, OUT ok boolean, OUT retry_after interval, OUT value double precision
) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.value
  FROM public.rate_limit_single('check', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s
$function$;
COMMENT ON FUNCTION public.rate_limit_check IS 'Decides like rate_limit, and writes nothing.';
