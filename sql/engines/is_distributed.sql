-- Returns whether the rows of rate_limits are spread over nodes. They are on YugabyteDB, and on Citus once the table is
-- distributed. A statement on a row then names its whole primary key, and costs a message to the node that has the row. Inlined.
DO $distributed$
DECLARE
  distributed boolean := pg_catalog.version() LIKE '%-YB-%';
BEGIN
  IF pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
    EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid = $1 AND p.partmethod = ''h'')'
    INTO distributed
    USING pg_catalog.to_regclass($name$rate_limit.rate_limits$name$);
  END IF;
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE OR REPLACE FUNCTION rate_limit._is_distributed() RETURNS boolean LANGUAGE sql IMMUTABLE
    AS $function$
      SELECT %s
    $function$
    $ddl$,
    distributed::text
  );
END
$distributed$;
