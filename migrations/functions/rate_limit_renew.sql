-- rate_limit_renew(text, text, bigint, interval)
-- SHA-256: 774986c6f2f19a13dd41c49b399c61aa35ae6ecf4d1c0a8b02e0591f9b85e732

-- Lets a lease end `lease` after now. Returns false if it has ended or was released: then its slots may be taken by others.
CREATE OR REPLACE FUNCTION public.rate_limit_renew(
  name text, key text, lease_id bigint, lease interval DEFAULT '30 seconds'
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT public.rate_limit_validate_item(NULL, name, key, 'concurrency', 1, lease, NULL, NULL, NULL, NULL, 1);
  SELECT d.call_admitted[1] = 1
  FROM public.rate_limit_decide_leases(
    ARRAY['concurrency'], ARRAY[1], ARRAY[(pg_catalog.date_part('epoch', lease) * 1000000)::bigint], NULL, NULL, NULL, NULL, NULL,
    ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[1], ARRAY['renew'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]) AS d
$function$;
COMMENT ON FUNCTION public.rate_limit_renew IS 'Lets a lease end later.';
