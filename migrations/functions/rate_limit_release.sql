-- rate_limit_release(text, text, bigint)
-- SHA-256: 08795efbf1669d152ef53709a596c359112e064e21ae81d43b0484b29d490549

-- Gives the slots of a lease back. Returns false if the lease has ended or was released before.
CREATE OR REPLACE FUNCTION public.rate_limit_release(name text, key text, lease_id bigint) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT public.rate_limit_validate_item(NULL, name, key, 'concurrency', 1, '1 second', NULL, NULL, NULL, NULL, 1);
  SELECT NOT d.item_refused[1]
  FROM public.rate_limit_decide_leases(
    ARRAY['concurrency'], ARRAY[1], ARRAY[1], NULL, NULL, NULL, NULL, NULL, ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[1],
    ARRAY['release'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]) AS d
$function$;
COMMENT ON FUNCTION public.rate_limit_release IS 'Gives the slots of a lease back.';
