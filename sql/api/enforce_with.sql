-- Takes `count` tokens, or raises RL429 to reject the statement, or the row in a trigger. DETAIL contains the retry time, as
-- in "Retry after 5.999500 seconds.". Returns the wait of a reservation, or NULL if there is none.
CREATE OR REPLACE FUNCTION rate_limit.enforce_with(
  name text, key text, kind text, rate double precision, period interval, capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1, reserve boolean DEFAULT false, max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL, resolution integer DEFAULT NULL, shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL
) RETURNS interval LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT c.retry_after
  FROM rate_limit._call(
    'enforce', key, rate_limit._rule(name, key, kind, rate, period, capacity, max_reserved, start, resolution, shards), count,
    reserve, at) AS c
$function$;
COMMENT ON FUNCTION rate_limit.enforce_with IS
  'Takes tokens from one bucket, or raises RL429 with the retry time in DETAIL.';
