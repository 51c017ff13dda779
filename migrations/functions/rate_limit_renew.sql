-- rate_limit_renew(text, text, bigint, interval)
-- SHA-256: c7b0d93ae00deb2c0c44854c73fcf5524e5428e0cfa1e31426dd0b057a4d7462

-- Lets a lease end `lease` after now. Returns false if it has ended or was released: then its slots may be taken by others.
CREATE OR REPLACE FUNCTION public.rate_limit_renew(
  name text, key text, lease_id bigint, lease interval DEFAULT '30 seconds'
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT d.call_admitted[1] = 1
  FROM public.rate_limit_decide_leases(
    ARRAY['concurrency'], ARRAY[1], ARRAY[(pg_catalog.date_part('epoch', lease) * 1000000)::bigint], NULL, NULL, NULL, NULL, NULL,
    ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[1], ARRAY['renew'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]) AS d
$function$;
COMMENT ON FUNCTION public.rate_limit_renew IS 'Lets a lease end later.';
