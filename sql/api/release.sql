-- Gives the slots of a lease back. Returns false if the lease has ended or was released before.
CREATE OR REPLACE FUNCTION rate_limit.release(name text, key text, lease_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT rate_limit._rule(name, key, 'concurrency', 1, '1 second', NULL, NULL, NULL, NULL, 1);
  SELECT NOT d.item_refused[1]
  FROM rate_limit._decide(
    ARRAY['concurrency'], ARRAY[1], ARRAY[1], NULL, NULL, NULL, NULL, NULL, ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[1],
    ARRAY['release'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]) AS d
$function$;
