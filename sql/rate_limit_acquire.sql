-- Takes `count` slots of a concurrency limit that has `capacity` slots for each key, and holds them for `lease`, or until
-- rate_limit_release gives them back. A denial changes nothing; `retry_after` is the time after which enough leases have ended
-- at the latest. `lease_id` names the lease for rate_limit_release and rate_limit_renew; `value` is the number of free slots.
--   SELECT ok, lease_id FROM rate_limit_acquire('reports', 'u1', capacity => 3, lease => '5 minutes');
CREATE OR REPLACE FUNCTION public.rate_limit_acquire(
  name text, key text, capacity integer, lease interval DEFAULT '30 seconds', count integer DEFAULT 1, OUT ok boolean,
  OUT retry_after interval, OUT lease_id bigint, OUT value double precision
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  decided record;
BEGIN
  PERFORM public.rate_limit_validate_item(NULL, name, key, 'concurrency', capacity, lease, NULL, NULL, NULL, NULL, 1);
  lease_id := floor(random() * 9007199254740990)::bigint + 2;
  decided := public.rate_limit_decide_leases(
    ARRAY['concurrency'], ARRAY[capacity], ARRAY[(extract(epoch FROM lease) * 1000000)::bigint], NULL, NULL, NULL, NULL, NULL,
    ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[count], ARRAY['limit'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]);
  ok := decided.call_admitted[1] = 1;
  retry_after := decided.call_waits[1] * interval '1 microsecond';
  value := decided.item_values[1];
  IF NOT ok THEN
    lease_id := NULL;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_acquire IS
  'Takes slots of a concurrency limit, or returns the time after which they are free at the latest.';

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
