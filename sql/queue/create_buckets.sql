-- Creates those of these buckets that have no row: full, so that nothing changes. In a queue with turns, an enqueue does this. So
-- workers do not create them, which could wait for a transaction that does, and that stays open.
CREATE OR REPLACE FUNCTION rate_limit._create_buckets(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[],
  item_limits integer[]
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  missing record;
BEGIN
  SELECT array_agg(m.name) AS names, array_agg(m.key) AS keys, array_agg(m.nth_limit) AS limits INTO missing
  FROM (
    SELECT DISTINCT ON (i.bucket) bucket_names[i.bucket] AS name, bucket_keys[i.bucket] AS key, i.nth_limit
    FROM unnest((SELECT item_buckets), item_limits) AS i (bucket, nth_limit)
    WHERE NOT EXISTS (
      SELECT
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_names[i.bucket] AND r.key = bucket_keys[i.bucket] AND r.shard = 0
    )
  ) AS m;
  IF missing.names IS NOT NULL THEN
    PERFORM rate_limit._decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts, NULL, limit_shards, missing.names,
      missing.keys, NULL, missing.limits, array_fill(0::double precision, ARRAY[cardinality(missing.names)]),
      array_fill('credit'::text, ARRAY[cardinality(missing.names)]), NULL, NULL, NULL, NULL);
  END IF;
END
$function$;
COMMENT ON FUNCTION rate_limit._create_buckets IS 'Creates buckets that have no row.';
