-- rate_limit_acquire(text, text, integer, interval, integer)
-- SHA-256: f2c285de6fd69ee0a1b4495c531c2f845fcb701097c156e7e4dfea15fb25c39e

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
