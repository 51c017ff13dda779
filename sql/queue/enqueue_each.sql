-- Enqueues jobs one after the other, as if each had a call of its own. It first locks all their buckets, in the order of all
-- calls. The arguments and results are those of _enqueue.
CREATE OR REPLACE FUNCTION rate_limit._enqueue_each(
  queue_name text, limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], job_sizes integer[], job_keys text[], job_payloads text[], job_priorities integer[],
  job_unique_ids text[], job_jitters bigint[], job_not_befores bigint[], job_max_attempts integer[], only_estimate boolean,
  job_slot_sizes integer[], slot_names text[], slot_keys text[], slot_counts double precision[], job_max_ages bigint[],
  OUT job_outcomes text[], OUT job_ids bigint[], OUT job_run_ats bigint[], OUT job_waits bigint[], OUT job_aheads bigint[],
  OUT item_refused boolean[], OUT item_values double precision[], OUT job_states text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  job record; -- the places of its items and slots
  one record;
BEGIN
  IF NOT only_estimate THEN
    PERFORM rate_limit._lock_buckets(bucket_names, bucket_keys);
  END IF;
  item_refused := '{}';
  item_values := '{}';
  FOR job IN
    SELECT
      u.nth::integer AS nth, u.size, u.slot_size, sum(u.size) OVER (ORDER BY u.nth)::integer AS last_item,
      sum(u.slot_size) OVER (ORDER BY u.nth)::integer AS last_slot
    FROM unnest(job_sizes, job_slot_sizes) WITH ORDINALITY AS u (size, slot_size, nth)
    ORDER BY u.nth
  LOOP
    SELECT
      e.job_outcomes, e.job_ids, e.job_run_ats, e.job_waits, e.job_aheads, e.item_refused, e.item_values, e.job_states
    INTO one
    FROM (
      SELECT
        coalesce(array_agg(bucket_names[i.bucket] ORDER BY i.nth), '{}') AS names,
        coalesce(array_agg(bucket_keys[i.bucket] ORDER BY i.nth), '{}') AS keys,
        coalesce(array_agg(i.nth::integer ORDER BY i.nth), '{}') AS buckets
      FROM unnest(item_buckets[job.last_item - job.size + 1:job.last_item]) WITH ORDINALITY AS i (bucket, nth)
    ) AS b
    CROSS JOIN LATERAL rate_limit._enqueue(
      queue_name, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts,
      limit_resolutions, limit_shards, b.names, b.keys, b.buckets, item_limits[job.last_item - job.size + 1:job.last_item],
      item_counts[job.last_item - job.size + 1:job.last_item], ARRAY[job.size], job_keys[job.nth:job.nth],
      job_payloads[job.nth:job.nth], job_priorities[job.nth:job.nth], job_unique_ids[job.nth:job.nth],
      job_jitters[job.nth:job.nth], job_not_befores[job.nth:job.nth], job_max_attempts[job.nth:job.nth], only_estimate,
      CASE WHEN job.slot_size > 0 THEN ARRAY[job.slot_size] END, slot_names[job.last_slot - job.slot_size + 1:job.last_slot],
      slot_keys[job.last_slot - job.slot_size + 1:job.last_slot], slot_counts[job.last_slot - job.slot_size + 1:job.last_slot],
      job_max_ages[job.nth:job.nth]
    ) AS e;
    job_outcomes := job_outcomes || one.job_outcomes;
    job_ids := array_append(job_ids, one.job_ids[1]);
    job_run_ats := array_append(job_run_ats, one.job_run_ats[1]);
    job_waits := array_append(job_waits, one.job_waits[1]);
    job_aheads := array_append(job_aheads, one.job_aheads[1]);
    job_states := array_append(job_states, one.job_states[1]);
    item_refused := item_refused || coalesce(one.item_refused, array_fill(false, ARRAY[job.size]));
    item_values := item_values || one.item_values;
  END LOOP;
END
$function$;
COMMENT ON FUNCTION rate_limit._enqueue_each IS 'Enqueues jobs one after the other.';
