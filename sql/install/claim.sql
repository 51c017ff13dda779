-- Revokes all privileges on new objects except the owner's: ALTER DEFAULT PRIVILEGES may have granted some to other roles, and
-- PostgreSQL lets every role call a new function. Recorded objects keep the privileges that were granted on them.
DO $claim$
DECLARE
  home CONSTANT oid := pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'));
  -- The names of the limiter's objects, which the library fills in. Empty: all objects of the schema.
  names CONSTANT text[] := $names${}$names$;
  made text[];
  revokes text[];
  revoke text;
BEGIN
  WITH objects AS (
    SELECT
      c.relname::text AS object,
      CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
      c.oid::pg_catalog.regclass::text AS named,
      c.relowner AS owner,
      c.relacl AS acl
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = home AND c.relkind IN ('r', 'p', 'v', 'S') AND (names = '{}' OR c.relname = ANY (names))
    UNION ALL
    SELECT
      -- Row types without their schema.
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
      )),
      'FUNCTION',
      p.oid::pg_catalog.regprocedure::text,
      p.proowner,
      coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
    FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = home AND (names = '{}' OR p.proname = ANY (names))
  ),
  new_objects AS (
    SELECT o.*
    FROM objects AS o
    WHERE NOT EXISTS (SELECT FROM rate_limit.objects AS r WHERE r.object = o.object)
  )
  SELECT
    ARRAY(SELECT n.object FROM new_objects AS n),
    ARRAY(
      SELECT
        pg_catalog.format(
          'REVOKE ALL ON %s %s FROM %s',
          n.kind,
          pg_catalog.string_agg(DISTINCT n.named, ', '),
          CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
      FROM new_objects AS n
      CROSS JOIN LATERAL pg_catalog.aclexplode(n.acl) AS a
      WHERE a.grantee <> n.owner
      GROUP BY n.kind, a.grantee
    )
  INTO made, revokes;
  FOREACH revoke IN ARRAY revokes LOOP
    EXECUTE revoke;
  END LOOP;
  -- Clients and other migrators read these two tables.
  IF 'objects' = ANY (made) THEN
    GRANT SELECT ON TABLE rate_limit.migrations, rate_limit.objects TO PUBLIC;
  END IF;
  INSERT INTO rate_limit.objects (object) SELECT m.object FROM pg_catalog.unnest(made) AS m (object);
END
$claim$;
