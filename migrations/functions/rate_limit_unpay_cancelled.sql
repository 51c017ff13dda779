-- rate_limit_unpay_cancelled(text, text[], text[], double precision[], bigint[], double precision[], bigint[])
-- SHA-256: 848ba744b41f57dc96ff5f5478e1f8760194fe12b7e492582d10c4d2bb620b27

-- Takes back the payments of jobs that were cancelled after they had paid ahead, and returns whether there were any. The
-- cancellation itself does not do this: its transaction may stay open for long, and claims must not wait for it.
CREATE OR REPLACE FUNCTION public.rate_limit_unpay_cancelled(
  queue_name text, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  job public.rate_limit_jobs;
BEGIN
  FOR job IN
    SELECT j.*
    FROM public.rate_limit_jobs AS j
    WHERE j.queue = queue_name AND j.state = 'cancelled' AND j.paid_until IS NOT NULL
      AND (j.limit_names <@ rate_limit_unpay_cancelled.limit_names OR j.paid_until <= clock)
    ORDER BY j.limit_names[j.paid_item] COLLATE "C", j.limit_keys[j.paid_item] COLLATE "C"
    LIMIT 100
    FOR NO KEY UPDATE SKIP LOCKED
  LOOP
    PERFORM public.rate_limit_unpay(
      job, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END LOOP;
  RETURN FOUND;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_unpay_cancelled IS
  'Returns the tokens that cancelled jobs paid ahead of their starts.';
