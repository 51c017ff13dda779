-- Takes slots under a rule of _rule or _definition.
CREATE OR REPLACE FUNCTION rate_limit._acquire(
  key text, rule rate_limit.definitions, count integer, OUT ok boolean, OUT retry_after interval, OUT lease_id bigint,
  OUT value double precision
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  decided record;
BEGIN
  IF rule.kind <> 'concurrency' THEN
    RAISE EXCEPTION 'no_slots: the limit "%" is a %, which has no slots', rule.name, split_part(rule.kind, ' ', 1)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call limit, or name a concurrency limit.';
  END IF;
  lease_id := floor(random() * 9007199254740990)::bigint + 2;
  decided := rate_limit._decide(
    ARRAY[rule.kind], ARRAY[rule.rate], ARRAY[rule.period], NULL, NULL, NULL, NULL, NULL, ARRAY[rule.name], ARRAY[key], ARRAY[1],
    ARRAY[1], ARRAY[count], ARRAY['limit'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]);
  ok := decided.call_admitted[1] = 1;
  retry_after := decided.call_waits[1] * interval '1 microsecond';
  value := decided.item_values[1];
  IF NOT ok THEN
    lease_id := NULL;
  END IF;
END
$function$;
