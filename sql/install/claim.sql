-- New objects belong to their owner alone: ALTER DEFAULT PRIVILEGES may have granted privileges on them to other roles, and
-- PostgreSQL lets everyone call a new function. Objects that are recorded keep what was granted on them.
DO $claim$
DECLARE
  home CONSTANT oid := pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$public.$schema$, '.'));
  made record;
  grantee text;
BEGIN
  FOR made IN
    SELECT n.*
    FROM (
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
        p.proname || '(' || pg_catalog.oidvectortypes(p.proargtypes) || ')',
        'FUNCTION',
        p.oid::pg_catalog.regprocedure::text,
        p.proowner,
        coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
      FROM pg_catalog.pg_proc AS p
      WHERE p.pronamespace = home AND p.proname LIKE 'rate\_limit%'
    ) AS n
    WHERE NOT EXISTS (SELECT FROM public.rate_limits_objects AS o WHERE o.object = n.object)
  LOOP
    FOR grantee IN
      SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END
      FROM pg_catalog.aclexplode(made.acl) AS a
      WHERE a.grantee <> made.owner
    LOOP
      EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s', made.kind, made.named, grantee);
    END LOOP;
    -- Clients and other migrators look at these two.
    IF made.object IN ('rate_limits_migrations', 'rate_limits_objects') THEN
      EXECUTE pg_catalog.format('GRANT SELECT ON TABLE %s TO PUBLIC', made.named);
    END IF;
    INSERT INTO public.rate_limits_objects (object) VALUES (made.object);
  END LOOP;
END
$claim$;
