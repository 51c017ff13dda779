-- rate_limit_enqueue_slots(text, text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], integer[], text[], text[], integer[], integer[], double precision[], integer[], text[], text[], integer[], text[], bigint[], bigint[], integer[], boolean, integer[], text[], text[], double precision[])
-- SHA-256: c31f8242461279b44163619e7403d6c403a049c879ff6d89de1bea3d22ea5ef4

-- Enqueues jobs as rate_limit_enqueue does, some of which have concurrency limits. A job takes their slots when it starts.
--
--   job_sizes       the number of items that take tokens; 0 for a job that only takes slots
--   job_slot_sizes  the number of slot items of each job
--   slot_*          one element for each slot item: the limit, the key, and the number of slots
CREATE OR REPLACE FUNCTION public.rate_limit_enqueue_slots(
  queue_name text, limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], job_sizes integer[], job_keys text[], job_payloads text[], job_priorities integer[],
  job_unique_ids text[], job_jitters bigint[], job_not_befores bigint[], job_max_attempts integer[], only_estimate boolean,
  job_slot_sizes integer[], slot_names text[], slot_keys text[], slot_counts double precision[],
  OUT job_outcomes text[], OUT job_ids bigint[], OUT job_run_ats bigint[], OUT job_waits bigint[], OUT job_aheads bigint[],
  OUT item_refused boolean[], OUT item_values double precision[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on
SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
#variable_conflict use_variable
BEGIN
  IF NOT coalesce(
    cardinality(job_slot_sizes) = cardinality(job_keys) AND 0 <= ALL (job_slot_sizes)
      AND cardinality(slot_names) = (SELECT coalesce(sum(u.size), 0) FROM unnest(job_slot_sizes) AS u (size))
      AND cardinality(slot_keys) = cardinality(slot_names) AND cardinality(slot_counts) = cardinality(slot_names)
      AND 1 <= ALL (slot_counts),
    false)
  THEN
    RAISE EXCEPTION 'the arrays for the slots of % jobs differ in length, or a count is below 1', cardinality(job_keys)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element for each slot item.';
  END IF;
  SELECT
    e.job_outcomes, e.job_ids, e.job_run_ats, e.job_waits, e.job_aheads, e.item_refused, e.item_values
  INTO job_outcomes, job_ids, job_run_ats, job_waits, job_aheads, item_refused, item_values
  FROM public.rate_limit_enqueue(
    queue_name, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts,
    limit_resolutions, limit_shards, bucket_names, bucket_keys, item_buckets, item_limits, item_counts, job_sizes,
    job_keys, job_payloads, job_priorities, job_unique_ids, job_jitters, job_not_befores, job_max_attempts,
    only_estimate
  ) AS e;
  UPDATE public.rate_limit_jobs AS j
  SET slot_names = s.names, slot_keys = s.keys, slot_counts = s.counts
  FROM (
    SELECT
      u.nth, array_agg(slot_names[i] ORDER BY i) AS names, array_agg(slot_keys[i] ORDER BY i) AS keys,
      array_agg(slot_counts[i] ORDER BY i) AS counts
    FROM (
      SELECT u.nth, u.size, sum(u.size) OVER (ORDER BY u.nth)::integer AS last_item
      FROM unnest(job_slot_sizes) WITH ORDINALITY AS u (size, nth)
    ) AS u
    CROSS JOIN LATERAL generate_series(u.last_item - u.size + 1, u.last_item) AS i
    WHERE job_outcomes[u.nth] = 'scheduled' AND NOT only_estimate
    GROUP BY u.nth
  ) AS s
  WHERE j.id = job_ids[s.nth];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_enqueue_slots IS 'Enqueues jobs that take slots of concurrency limits when they start.';
