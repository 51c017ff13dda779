-- rate_limit_clock()
-- SHA-256: de02147e5e10543d6e3702197c433d4bf29f01b9123401f6c4fc771b4d52b482

-- The limiter's clock: microseconds since the Unix epoch. It uses clock_timestamp() because now() stands still in a
-- transaction: a call that waits for a lock would use the time at which it began to wait. It uses date_part because extract
-- is slow. A double precision number is exact enough for microseconds until the year 2255.
CREATE OR REPLACE FUNCTION public.rate_limit_clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $function$
  SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_clock IS 'Returns the clock in microseconds since the Unix epoch; inlined.';
