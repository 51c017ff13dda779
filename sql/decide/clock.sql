-- The limiter's clock: microseconds since the Unix epoch. It uses clock_timestamp() because now() stands still in a
-- transaction: a call that waits for a lock would use the time at which it began to wait. It uses date_part because extract
-- is slow. A double precision number is exact enough for microseconds until the year 2255.
CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $function$
  SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint
$function$;
