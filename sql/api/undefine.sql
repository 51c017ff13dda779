-- Ends a stored limit: calls that name it fail. Returns whether it was defined. Its buckets stay until they are idle and pruned.
CREATE OR REPLACE FUNCTION rate_limit.undefine(name text) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  no_rule rate_limit.definitions;
BEGIN
  no_rule.name := name;
  RETURN rate_limit._redefine(no_rule);
END
$function$;
