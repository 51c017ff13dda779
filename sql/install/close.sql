-- Revokes EXECUTE on the limiter's functions from PUBLIC, which has it after a restore without privileges.
DO $close$
DECLARE
  named CONSTANT text := pg_catalog.rtrim($schema$rate_limit.$schema$, '.');
  former_path CONSTANT text := pg_catalog.current_setting('search_path');
  open_functions text;
BEGIN
  -- Signatures are recorded with the limiter's row types without their schema.
  PERFORM pg_catalog.set_config('search_path', pg_catalog.format('pg_catalog, %s, pg_temp', named), true);
  SELECT pg_catalog.string_agg(DISTINCT p.oid::pg_catalog.regprocedure::text, ', ')
  INTO open_functions
  FROM rate_limit.objects AS o
  JOIN pg_catalog.pg_proc AS p ON p.oid = pg_catalog.to_regprocedure(pg_catalog.format('%s.%s', named, o.object))
  CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) AS a
  WHERE o.sha256 IS NOT NULL AND a.grantee = 0;
  IF open_functions IS NOT NULL THEN
    EXECUTE pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', open_functions);
  END IF;
  PERFORM pg_catalog.set_config('search_path', former_path, true);
END
$close$;
