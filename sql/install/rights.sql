-- Returns the privileges that the current role lacks to migrate, in one row: the role, the privileges, the object, and its owner:
-- that role can grant them. Reads system catalogs only.
SELECT
  pg_catalog.quote_ident(current_user) AS role,
  CASE
    WHEN n.oid IS NULL THEN 'CREATE'
    ELSE pg_catalog.concat_ws(
      ', ', CASE WHEN NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE' END,
      CASE WHEN NOT pg_catalog.has_schema_privilege(n.oid, 'CREATE') THEN 'CREATE' END)
  END AS privilege,
  CASE
    WHEN n.oid IS NULL THEN pg_catalog.format('DATABASE %I', d.datname) ELSE pg_catalog.format('SCHEMA %I', n.nspname)
  END AS what,
  pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(coalesce(n.nspowner, d.datdba))) AS granted_by
FROM pg_catalog.pg_database AS d
LEFT JOIN pg_catalog.pg_namespace AS n
  ON n.oid = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
WHERE d.datname = pg_catalog.current_database()
  AND NOT CASE
    WHEN n.oid IS NULL THEN pg_catalog.has_database_privilege(d.oid, 'CREATE')
    ELSE pg_catalog.has_schema_privilege(n.oid, 'CREATE') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  END
