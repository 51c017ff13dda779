-- Returns the installed objects, one row each: type, name and definition. Reads system catalogs only, and locks no table.
-- So it leaves out the conditions of partial indexes, which cannot be printed without a lock. The hash of a function covers
-- everything that determines its behaviour; it is the same in every schema and on every version of PostgreSQL.
--
-- The names of the limiter's objects are filled in by the library. Empty: all objects of the schema.
WITH names (name) AS (
  SELECT n.name FROM pg_catalog.unnest($names${}$names$::text[]) AS n (name)
),
home AS (
  SELECT n.oid
  FROM pg_catalog.pg_namespace AS n
  WHERE n.oid = pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'))
),
relations AS (
  -- The columns are listed, because on PostgreSQL 11 `*` does not include oid.
  SELECT c.oid, c.relname, c.relkind, c.relpersistence, c.relrowsecurity, c.relowner, c.relacl
  FROM pg_catalog.pg_class AS c
  JOIN home AS h ON h.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND (c.relname::text IN (SELECT n.name FROM names AS n) OR NOT EXISTS (SELECT FROM names))
),
functions AS (
  SELECT
    p.oid AS id,
    p.*,
    -- Row types and arrays of row types are printed without their schema.
    pg_catalog.format('%s(%s)', p.proname, (
      SELECT pg_catalog.string_agg(
        CASE
          WHEN t.typnamespace <> p.pronamespace THEN pg_catalog.format_type(t.oid, NULL)
          ELSE coalesce(e.typname || '[]', t.typname)
        END,
        ', ' ORDER BY a.nth)
      FROM pg_catalog.unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (type, nth)
      JOIN pg_catalog.pg_type AS t ON t.oid = a.type
      LEFT JOIN pg_catalog.pg_type AS e ON e.typarray = t.oid
    )) AS signature
  FROM pg_catalog.pg_proc AS p
  JOIN home AS h ON h.oid = p.pronamespace
  WHERE p.proname::text IN (SELECT n.name FROM names AS n) OR NOT EXISTS (SELECT FROM names)
),
owners (object, owner) AS (
  SELECT r.relname::text, r.relowner FROM relations AS r
  UNION ALL
  SELECT f.signature, f.proowner FROM functions AS f
),
grants AS (
  SELECT r.relname::text AS object, r.relowner AS owner, a.grantee, a.privilege_type
  FROM relations AS r
  CROSS JOIN LATERAL pg_catalog.aclexplode(r.relacl) AS a
  UNION ALL
  SELECT r.relname || '.' || c.attname, r.relowner, a.grantee, a.privilege_type
  FROM relations AS r
  JOIN pg_catalog.pg_attribute AS c ON c.attrelid = r.oid
  CROSS JOIN LATERAL pg_catalog.aclexplode(c.attacl) AS a
  UNION ALL
  SELECT f.signature, f.proowner, a.grantee, a.privilege_type
  FROM functions AS f
  CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(f.proacl, pg_catalog.acldefault('f', f.proowner))) AS a
)
SELECT 'schema' AS what, n.nspname::text AS which, pg_catalog.pg_get_userbyid(n.nspowner)::text AS definition
FROM pg_catalog.pg_namespace AS n
JOIN home AS h ON h.oid = n.oid
UNION ALL
SELECT
  'table',
  r.relname,
  CASE r.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' ELSE 'not a table' END
    || CASE r.relpersistence WHEN 'p' THEN '' ELSE ' UNLOGGED' END
    || CASE WHEN r.relrowsecurity THEN ' ROW LEVEL SECURITY' ELSE '' END
    || coalesce((
      SELECT ' with the child ' || pg_catalog.string_agg(i.inhrelid::pg_catalog.regclass::text, ', ' ORDER BY i.inhrelid)
      FROM pg_catalog.pg_inherits AS i
      WHERE i.inhparent = r.oid
    ), '')
FROM relations AS r
UNION ALL
SELECT
  'column',
  r.relname || '.' || c.attname,
  pg_catalog.format_type(c.atttypid, c.atttypmod)
    || CASE WHEN l.collname = 'C' THEN ' COLLATE "C"' ELSE '' END
    || CASE WHEN c.attnotnull THEN ' NOT NULL' ELSE '' END
    || CASE WHEN c.attidentity <> '' THEN ' IDENTITY' ELSE '' END
    || coalesce(' DEFAULT ' || pg_catalog.pg_get_expr(d.adbin, 0), '')
FROM relations AS r
JOIN pg_catalog.pg_attribute AS c ON c.attrelid = r.oid
LEFT JOIN pg_catalog.pg_collation AS l ON l.oid = c.attcollation
LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = r.oid AND d.adnum = c.attnum
WHERE r.relkind = 'r' AND c.attnum > 0 AND NOT c.attisdropped
UNION ALL
SELECT
  'index',
  r.relname || '.' || n.relname,
  CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END || '('
    || pg_catalog.array_to_string(
      ARRAY(SELECT k.attname FROM pg_catalog.pg_attribute AS k WHERE k.attrelid = i.indexrelid ORDER BY k.attnum), ', ')
    || ')' || CASE WHEN i.indpred IS NULL THEN '' ELSE ' WHERE' END
    || CASE WHEN i.indisvalid THEN '' ELSE ' INVALID' END
FROM relations AS r
JOIN pg_catalog.pg_index AS i ON i.indrelid = r.oid
JOIN pg_catalog.pg_class AS n ON n.oid = i.indexrelid
UNION ALL
SELECT
  'function',
  f.signature,
  pg_catalog.encode(
    pg_catalog.sha256(
      pg_catalog.convert_to(
        pg_catalog.concat_ws(
          ' | ',
          l.lanname,
          f.provolatile,
          f.prosecdef,
          f.proisstrict,
          f.proretset,
          -- Set where the server has the setting.
          pg_catalog.array_to_string(pg_catalog.array_remove(f.proconfig, 'plan_cache_mode=force_generic_plan'), ', '),
          pg_catalog.array_to_string(f.proargnames, ', '),
          pg_catalog.array_to_string(f.proargmodes::text[], ', '),
          pg_catalog.array_to_string(
            ARRAY(
              SELECT t.typname
              FROM pg_catalog.unnest(coalesce(f.proallargtypes, f.proargtypes::oid[])) WITH ORDINALITY AS a (type, nth)
              JOIN pg_catalog.pg_type AS t ON t.oid = a.type
              ORDER BY a.nth
            ),
            ', '),
          pg_catalog.pg_get_expr(f.proargdefaults, 0),
          y.typname,
          -- The own schema becomes the default one. A function of another schema that names the default one is wrong.
          pg_catalog.replace(
            pg_catalog.replace(
              pg_catalog.replace(f.prosrc, $schema$rate_limit.$schema$, pg_catalog.chr(1)), 'rate_limit' || '.', '?'),
            pg_catalog.chr(1), 'rate_limit' || '.')),
        'UTF8')),
    'hex')
FROM functions AS f
JOIN pg_catalog.pg_language AS l ON l.oid = f.prolang
JOIN pg_catalog.pg_type AS y ON y.oid = f.prorettype
UNION ALL
SELECT 'owner', o.object, pg_catalog.pg_get_userbyid(o.owner)::text
FROM owners AS o
UNION ALL
-- Whether the current role has the rights of an owner.
SELECT DISTINCT 'rights', pg_catalog.pg_get_userbyid(o.owner)::text, pg_catalog.pg_has_role(o.owner, 'USAGE')::text
FROM owners AS o
UNION ALL
-- The privileges of the current role.
SELECT
  'current',
  current_user::text,
  CASE
    WHEN NOT pg_catalog.has_schema_privilege(h.oid, 'USAGE') THEN 'nothing'
    WHEN EXISTS (SELECT FROM functions AS f WHERE pg_catalog.has_function_privilege(f.id, 'EXECUTE')) THEN 'call'
    ELSE 'use the schema'
  END
FROM home AS h
UNION ALL
SELECT
  'grant',
  g.object,
  CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(g.grantee)) END
    || ': ' || g.privilege_type
FROM grants AS g
WHERE g.grantee <> g.owner
ORDER BY 1, 2, 3
