-- Takes the place of the function in sql/queue/wake_groups.sql while the queue is not installed: no group waits for slots.
DO $without$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.queue_groups$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  CREATE OR REPLACE FUNCTION rate_limit._slots_freed(
    limit_kinds text[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
    item_values double precision[]
  ) RETURNS void LANGUAGE plpgsql VOLATILE
  AS $function$
  BEGIN
    RETURN;
  END
  $function$;
  COMMENT ON FUNCTION rate_limit._slots_freed IS 'Does nothing, because the queue is not installed.';
END
$without$;
