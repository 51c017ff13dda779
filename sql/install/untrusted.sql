-- Returns the problems that make the schema unsafe to migrate, one row each, whether an object has another owner, and the
-- statement that removes a trigger or a rule. Reads system catalogs only, so that it runs no code of other roles. The names of
-- the limiter's objects are filled in by the library. Empty: all objects of the schema.
--
-- A role that can create objects in the schema could put a table with a trigger, or a function, in the place of one of the
-- limiter's. Its code would run as the role that migrates, or as the owner of the functions.
WITH names (name) AS (
  SELECT n.name FROM pg_catalog.unnest($names${}$names$::text[]) AS n (name)
),
home AS (
  SELECT n.oid, n.nspowner, n.nspacl
  FROM pg_catalog.pg_namespace AS n
  WHERE n.oid = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
),
migrator AS (
  SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user
),
objects AS (
  SELECT c.oid, c.relowner AS owner, pg_catalog.format('the relation %I', c.relname) AS label
  FROM pg_catalog.pg_class AS c
  JOIN home AS h ON h.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
    AND (c.relname::text IN (SELECT n.name FROM names AS n) OR NOT EXISTS (SELECT FROM names))
  UNION ALL
  SELECT p.oid, p.proowner, pg_catalog.format('the function %s', p.oid::pg_catalog.regprocedure)
  FROM pg_catalog.pg_proc AS p
  JOIN home AS h ON h.oid = p.pronamespace
  WHERE p.proname::text IN (SELECT n.name FROM names AS n) OR NOT EXISTS (SELECT FROM names)
)
SELECT pg_catalog.format('%s belongs to the role %I', o.label, r.rolname) AS problem, true AS is_of_owner, NULL AS statement
FROM objects AS o
JOIN pg_catalog.pg_roles AS r ON r.oid = o.owner
CROSS JOIN migrator AS m
WHERE r.oid <> m.oid
  -- A superuser has the rights of every role, and trusts only other superusers.
  AND NOT CASE WHEN m.rolsuper THEN r.rolsuper ELSE pg_catalog.pg_has_role(m.oid, r.oid, 'USAGE') END
UNION ALL
SELECT
  pg_catalog.format('%s has the trigger %I', o.label, t.tgname),
  false,
  pg_catalog.format('DROP TRIGGER %I ON %s', t.tgname, o.oid::pg_catalog.regclass)
FROM objects AS o
JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = o.oid
WHERE NOT t.tgisinternal
UNION ALL
SELECT
  pg_catalog.format('%s has the rule %I', o.label, w.rulename),
  false,
  pg_catalog.format('DROP RULE %I ON %s', w.rulename, o.oid::pg_catalog.regclass)
FROM objects AS o
JOIN pg_catalog.pg_rewrite AS w ON w.ev_class = o.oid
WHERE w.rulename <> '_RETURN'
UNION ALL
SELECT DISTINCT
  CASE
    WHEN a.grantee = 0 THEN 'every role can create objects in it'
    ELSE pg_catalog.format('the role %I can create objects in it', g.rolname)
  END,
  false,
  NULL
FROM home AS h
CROSS JOIN migrator AS m
CROSS JOIN LATERAL pg_catalog.aclexplode(h.nspacl) AS a
LEFT JOIN pg_catalog.pg_roles AS g ON g.oid = a.grantee
WHERE a.privilege_type = 'CREATE' AND a.grantee NOT IN (h.nspowner, m.oid) AND g.rolsuper IS NOT TRUE
  -- Only if some role could use the privilege.
  AND (a.grantee <> 0 OR EXISTS (
    SELECT
    FROM pg_catalog.pg_roles AS r
    WHERE NOT r.rolsuper AND r.oid <> m.oid AND r.rolname NOT LIKE 'pg\_%'
      AND NOT pg_catalog.pg_has_role(r.oid, h.nspowner, 'MEMBER')
  ))
ORDER BY 1
