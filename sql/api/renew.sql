-- Lets a lease end `lease` after now. Returns false if it has ended or was released: then its slots may be taken by others.
CREATE OR REPLACE FUNCTION rate_limit.renew(
  name text, key text, lease_id bigint, lease interval DEFAULT '30 seconds'
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT rate_limit._rule(name, key, 'concurrency', 1, lease, NULL, NULL, NULL, NULL, 1);
  SELECT d.call_admitted[1] = 1
  FROM rate_limit._decide(
    ARRAY['concurrency'], ARRAY[1], ARRAY[(pg_catalog.date_part('epoch', lease) * 1000000)::bigint], NULL, NULL, NULL, NULL, NULL,
    ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[1], ARRAY['renew'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]) AS d
$function$;
COMMENT ON FUNCTION rate_limit.renew IS 'Lets a lease end later.';
