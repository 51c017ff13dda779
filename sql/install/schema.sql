-- Creates the schema if it is missing. ALTER DEFAULT PRIVILEGES may have granted rights on it to other roles: they are revoked,
-- because a role that can create objects in it could put them in the place of the limiter's.
DO $create$
DECLARE
  named CONSTANT text := pg_catalog.rtrim($schema$rate_limit.$schema$, '.');
  revoke text;
BEGIN
  IF pg_catalog.to_regnamespace(named) IS NOT NULL THEN
    RETURN;
  END IF;
  EXECUTE pg_catalog.format('CREATE SCHEMA %s', named);
  FOR revoke IN
    SELECT DISTINCT
      pg_catalog.format(
        'REVOKE ALL ON SCHEMA %s FROM %s', named,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
    FROM pg_catalog.pg_namespace AS n
    CROSS JOIN LATERAL pg_catalog.aclexplode(n.nspacl) AS a
    WHERE n.oid = pg_catalog.to_regnamespace(named) AND a.grantee <> n.nspowner
  LOOP
    EXECUTE revoke;
  END LOOP;
END
$create$;
