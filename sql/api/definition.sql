-- Returns the rule of a stored limit for a call on this key; raises an error if there is none.
CREATE OR REPLACE FUNCTION rate_limit._definition(name text, key text) RETURNS rate_limit.definitions LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  rule rate_limit.definitions;
BEGIN
  IF NOT coalesce(name <> '' AND octet_length(key) <= 1024, false) THEN
    PERFORM rate_limit._rule(name, key, 'token_bucket', 1, '1 microsecond', 0, 0, NULL, NULL, 1);
  END IF;
  SELECT d.*
  INTO rule
  FROM rate_limit.definitions AS d
  WHERE d.name = name
  ORDER BY d.version DESC
  LIMIT 1;
  IF rule.kind IS NULL THEN
    RAISE EXCEPTION 'undefined_limit: the limit "%" is not defined', name
      USING ERRCODE = 'undefined_object', HINT = 'Define it with the function define, or give its rule to a function with _with.';
  END IF;
  RETURN rule;
END
$function$;
