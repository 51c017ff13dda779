-- Takes the place of the function in sql/queue/forget_jobs.sql while the queue is not installed: there are no jobs.
DO $without$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.queue_groups$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  CREATE OR REPLACE FUNCTION rate_limit._forget_jobs(
    key text, bucket_names text[], bucket_keys text[], limit_names text[], limit_kinds text[], limit_rates double precision[],
    limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[], limit_shards integer[], OUT jobs bigint,
    OUT running bigint
  ) LANGUAGE plpgsql VOLATILE
  AS $function$
  BEGIN
    jobs := 0;
    running := 0;
  END
  $function$;
  COMMENT ON FUNCTION rate_limit._forget_jobs IS 'Finds nothing, because the queue is not installed.';
END
$without$;
