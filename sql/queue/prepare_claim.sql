-- Takes back the payments of jobs that were cancelled after they had paid ahead, and returns whether there were any. The
-- cancellation itself does not do this: its transaction may stay open for long, and claims must not wait for it.
CREATE OR REPLACE FUNCTION rate_limit._unpay_cancelled(
  queue_name text, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  job rate_limit.jobs;
BEGIN
  FOR job IN
    SELECT j.*
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.state = 'cancelled' AND j.paid_until IS NOT NULL
      AND (j.limit_names <@ _unpay_cancelled.limit_names OR j.paid_until <= clock)
    ORDER BY j.limit_names[j.paid_item] COLLATE "C", j.limit_keys[j.paid_item] COLLATE "C"
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    PERFORM rate_limit._unpay(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END LOOP;
  RETURN FOUND;
END
$function$;
