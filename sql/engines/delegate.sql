-- Lets the node that has a bucket run the functions for a lone call: such a call outside of a transaction is then one message to
-- that node. Citus has sent the functions to all nodes when they were created. It can run again, after functions were created or
-- replaced. Functions that people call are not delegated: Citus 13.0 crashes if the argument that selects the node is NULL.
DO $delegate$
DECLARE
  home CONSTANT oid := pg_catalog.to_regnamespace(pg_catalog.rtrim($schema$rate_limit.$schema$, '.'));
  -- The names of the limiter's objects, which the library fills in. Empty: all objects of the schema.
  names CONSTANT text[] := $names${}$names$;
  callable record;
BEGIN
  FOR callable IN
    SELECT p.oid::pg_catalog.regprocedure AS named
    FROM pg_catalog.pg_proc AS p
    WHERE p.proname IN (
        '_take_token_bucket', '_take_fixed_window', '_take_sliding_window', '_decide_one')
      AND p.pronamespace = home
      AND NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_dist_object AS o
        WHERE o.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND o.objid = p.oid
          AND o.distribution_argument_index IS NOT NULL
      )
  LOOP
    PERFORM pg_catalog.create_distributed_function(
      callable.named, 'bucket_key', colocate_with => $name$rate_limit.rate_limits$name$);
  END LOOP;
  -- A function that is new on a node has the privileges of a new function there, and not yet those that it has here.
  FOR callable IN
    SELECT
      pg_catalog.format(
        'REVOKE ALL ON FUNCTION %s FROM PUBLIC', pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::text, ', '))
        AS statement
    FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = home AND (names = '{}' OR p.proname = ANY (names))
      AND NOT EXISTS (
        SELECT
        FROM pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) AS a
        WHERE a.grantee = 0
      )
    HAVING pg_catalog.count(*) > 0
    UNION ALL
    SELECT
      pg_catalog.format(
        'GRANT EXECUTE ON FUNCTION %s TO %I', pg_catalog.string_agg(p.oid::pg_catalog.regprocedure::text, ', '),
        pg_catalog.pg_get_userbyid(a.grantee))
    FROM pg_catalog.pg_proc AS p
    CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) AS a
    WHERE p.pronamespace = home AND (names = '{}' OR p.proname = ANY (names))
      AND a.grantee NOT IN (0, p.proowner)
    GROUP BY a.grantee
  LOOP
    EXECUTE callable.statement;
  END LOOP;
END
$delegate$;
