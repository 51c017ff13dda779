-- Returns the role that should own new objects, if the current role is another one that may become it, and the present setting of
-- `role`. It is the owner of the objects that exist, or else of the schema, so that logins can come and go. A superuser does not
-- become another role: code of that role could turn it back into a superuser.
SELECT w.rolname::text AS owner, pg_catalog.current_setting('role') AS role
FROM pg_catalog.pg_namespace AS n
LEFT JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'rate_limits'
JOIN pg_catalog.pg_roles AS w ON w.oid = coalesce(c.relowner, n.nspowner)
JOIN pg_catalog.pg_roles AS m ON m.rolname = current_user AND m.oid <> w.oid AND NOT m.rolsuper
WHERE n.oid = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
  AND NOT w.rolsuper AND w.rolname NOT LIKE 'pg\_%'
  -- From PostgreSQL 16 on, a member may lack the right to become the role.
  AND pg_catalog.pg_has_role(
    m.oid, w.oid, CASE WHEN pg_catalog.current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END)
