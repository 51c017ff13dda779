-- Returns the rows of a bucket as a table, each with whether a transaction is writing to it. Locks no row. _draw
-- draws from these rows; _bucket_rows returns them in order, and can lock them. Inlined, except on Citus: there, an SQL
-- function cannot use its arguments in a query on a distributed table.
--
-- A row with an xmax is in use: a transaction is writing to it, or has written to it since the snapshot (or has rolled back). A
-- caller that has the choice takes another row. If a row was locked before it was written, its xmax stays that of the writer.
-- YugabyteDB has no such columns.
DO $rows$
BEGIN
  IF pg_catalog.version() NOT LIKE '%-YB-%' AND rate_limit._is_distributed() THEN
    EXECUTE $ddl$
      CREATE OR REPLACE FUNCTION rate_limit._rows(bucket_name text, bucket_key text)
      RETURNS TABLE (shard integer, bucket rate_limit.rate_limits, in_use boolean)
      LANGUAGE plpgsql STABLE
      AS $function$
      BEGIN
        in_use := true; -- It may be.
        FOR bucket IN
          SELECT r.*
          FROM rate_limit.rate_limits AS r
          WHERE r.name = bucket_name AND r.key = bucket_key
        LOOP
          shard := bucket.shard;
          RETURN NEXT;
        END LOOP;
      END
      $function$
    $ddl$;
    RETURN;
  END IF;
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE OR REPLACE FUNCTION rate_limit._rows(bucket_name text, bucket_key text)
    RETURNS TABLE (shard integer, bucket rate_limit.rate_limits, in_use boolean)
    LANGUAGE sql STABLE
    AS $function$
      SELECT r.shard, r, %s
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key
    $function$
    $ddl$,
    CASE WHEN pg_catalog.version() LIKE '%-YB-%' THEN 'false' ELSE 'r.xmax <> 0 AND r.xmax <> r.xmin' END
  );
END
$rows$;
