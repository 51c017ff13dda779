-- Revokes all privileges on new objects except the owner's: ALTER DEFAULT PRIVILEGES may have granted some to other roles, and
-- PostgreSQL lets every role call a new function. Recorded objects keep the privileges that were granted on them.
DO $claim$
DECLARE
  home CONSTANT oid := pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$public.$schema$, '.'));
  made text[];
  revokes text[];
  revoke text;
  statement text;
BEGIN
  WITH objects AS (
    SELECT
      c.relname::text AS object,
      CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
      c.oid::pg_catalog.regclass::text AS named,
      c.relowner AS owner,
      c.relacl AS acl
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = home AND c.relname LIKE 'rate\_limit%' AND c.relkind IN ('r', 'p', 'v', 'S')
    UNION ALL
    SELECT
      -- Row types without their schema.
      pg_catalog.format('%s(%s)', p.proname, (
        SELECT pg_catalog.string_agg(
          CASE
            WHEN t.typname LIKE 'rate\_limit%' THEN t.typname
            WHEN t.typname LIKE '\_rate\_limit%' THEN pg_catalog.substr(t.typname, 2) || '[]'
            ELSE pg_catalog.format_type(t.oid, NULL)
          END,
          ', ' ORDER BY a.nth)
        FROM pg_catalog.unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (type, nth)
        JOIN pg_catalog.pg_type AS t ON t.oid = a.type
      )),
      'FUNCTION',
      p.oid::pg_catalog.regprocedure::text,
      p.proowner,
      coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
    FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = home AND p.proname LIKE 'rate\_limit%'
  ),
  new_objects AS (
    SELECT o.*
    FROM objects AS o
    WHERE NOT EXISTS (SELECT FROM public.rate_limits_objects AS r WHERE r.object = o.object)
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
  -- If clients now call a new function instead of an older one, the roles that may call the older one may call the new one.
  FOR statement IN
    SELECT
      pg_catalog.format(
        'GRANT EXECUTE ON FUNCTION %s TO %s',
        n.oid::pg_catalog.regprocedure,
        CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END)
    FROM (VALUES ('rate_limit_decide', 'rate_limit_decide_sums'), ('rate_limit_decide', 'rate_limit_decide_leases'),
      ('rate_limit_decide', 'rate_limit_take_slots'), ('rate_limit_decide', 'rate_limit_window'),
      ('rate_limit_decide', 'rate_limit_take_ample'),
      ('rate_limit_enqueue', 'rate_limit_enqueue_slots'),
      ('rate_limit_take', 'rate_limit_decide_one')) AS s (older, newer)
    JOIN pg_catalog.pg_proc AS o ON o.proname = s.older AND o.pronamespace = home
    JOIN pg_catalog.pg_proc AS n ON n.proname = s.newer AND n.pronamespace = home
    CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(o.proacl, pg_catalog.acldefault('f', o.proowner))) AS a
    WHERE a.grantee <> o.proowner
      AND EXISTS (SELECT FROM pg_catalog.unnest(made) AS m (object) WHERE m.object LIKE s.newer || '(%')
  LOOP
    EXECUTE statement;
  END LOOP;
  -- Clients and other migrators read these two tables.
  IF 'rate_limits_objects' = ANY (made) THEN
    GRANT SELECT ON TABLE public.rate_limits_migrations, public.rate_limits_objects TO PUBLIC;
  END IF;
  INSERT INTO public.rate_limits_objects (object) SELECT m.object FROM pg_catalog.unnest(made) AS m (object);
END
$claim$;
