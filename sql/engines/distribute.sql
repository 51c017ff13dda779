-- Distributes the tables over the nodes of a Citus cluster, with the rows that they have: buckets by their key, and answers by
-- their idempotency key. It can run again. The tables of the queue stay on the coordinator: the unique ids of a queue span its
-- groups, and one claim looks at many groups.
DO $distribute$
BEGIN
  IF pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NULL THEN
    RAISE EXCEPTION 'the extension citus is not installed in this database'
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'CREATE EXTENSION citus on each node, and add the nodes.';
  END IF;
  IF NOT EXISTS (
    SELECT FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid = $name$rate_limit.rate_limits$name$::pg_catalog.regclass
  )
  THEN
    PERFORM pg_catalog.create_distributed_table($name$rate_limit.rate_limits$name$, 'key', colocate_with => 'none');
    PERFORM pg_catalog.truncate_local_data_after_distributing_table($name$rate_limit.rate_limits$name$::pg_catalog.regclass);
  END IF;
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_dist_partition AS p
    WHERE p.logicalrelid = $name$rate_limit.answers$name$::pg_catalog.regclass
  )
  THEN
    PERFORM pg_catalog.create_distributed_table(
      $name$rate_limit.answers$name$, 'idempotency_key', colocate_with => $name$rate_limit.rate_limits$name$);
    PERFORM pg_catalog.truncate_local_data_after_distributing_table($name$rate_limit.answers$name$::pg_catalog.regclass);
  END IF;
END
$distribute$;
