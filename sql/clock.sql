-- The limiter's clock: microseconds since the Unix epoch. clock_timestamp(), because now() stands still in a
-- transaction and would give a waiter the time at which it began to wait.
CREATE OR REPLACE FUNCTION public.rate_limit_clock()
RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
  SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
$function$;
