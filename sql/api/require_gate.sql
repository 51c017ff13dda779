-- Raises an error if the name or the key is not valid, or if the stored limit of this name is no gate. A name that is not stored
-- passes: its limit is a value of the application.
CREATE OR REPLACE FUNCTION rate_limit._require_gate(name text, key text) RETURNS void LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  kind text; -- of the stored limit
BEGIN
  PERFORM rate_limit._rule(name, key, 'token_bucket', 1, '1 microsecond', 0, 0, NULL, NULL, 1);
  SELECT split_part(d.kind, ' ', 1)
  INTO kind
  FROM rate_limit.definitions AS d
  WHERE d.name = name
  ORDER BY d.version DESC
  LIMIT 1;
  IF kind <> 'gate' THEN
    RAISE EXCEPTION 'not_a_gate: the limit "%" is a %, not a gate, so it cannot be blocked', name, kind
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Block a key of a gate: a limit of that kind, with a name of its own.';
  END IF;
END
$function$;
