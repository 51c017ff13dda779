-- Writes the scheduled jobs of an enqueue, with the times at which their tokens are available (job_ats). Returns one id for
-- each job: NULL for a job that was not to be written, or if another transaction has written a job with its unique id since.
CREATE OR REPLACE FUNCTION rate_limit._write_jobs(
  queue_name text, bucket_names text[], bucket_keys text[], item_buckets integer[], item_counts double precision[], job_sizes
  integer[], job_last_items integer[], job_keys text[], job_payloads text[], job_priorities integer[], job_unique_ids text[],
  job_jitters bigint[], job_not_befores bigint[], job_max_attempts integer[], job_outcomes text[], job_ats bigint[], clock
  bigint, job_slot_sizes integer[], slot_names text[], slot_keys text[], slot_counts double precision[], job_max_ages bigint[],
  job_weights integer[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  written_ids bigint[];
  written_unique_ids text[];
  written integer := 0;
  job_ids bigint[];
BEGIN
  WITH written AS (
    INSERT INTO rate_limit.jobs (
      queue, key, priority, run_at, not_before, jitter, payload, unique_id, limit_names, limit_keys, counts, max_attempts,
      enqueued_at, expires_at, weight, awaits_turn, slot_names, slot_keys, slot_counts
    )
    SELECT
      queue_name, u.key, u.priority, u.run_at, u.not_before, nullif(u.jitter, 0), u.payload::jsonb, u.unique_id,
      CASE
        WHEN u.size = 1 THEN ARRAY[bucket_names[item_buckets[u.last_item]]]
        ELSE ARRAY(
          SELECT bucket_names[item_buckets[n]]
          FROM generate_series(u.last_item - u.size + 1, u.last_item) AS n
          ORDER BY n)
      END,
      CASE
        WHEN u.size = 1 THEN ARRAY[bucket_keys[item_buckets[u.last_item]]]
        ELSE ARRAY(
          SELECT bucket_keys[item_buckets[n]]
          FROM generate_series(u.last_item - u.size + 1, u.last_item) AS n
          ORDER BY n)
      END,
      CASE
        WHEN u.size = 1 THEN ARRAY[item_counts[u.last_item]]
        ELSE item_counts[u.last_item - u.size + 1:u.last_item]
      END,
      u.max_attempts, clock, greatest(clock, u.not_before) + u.max_age,
      CASE WHEN u.weight IS NOT NULL THEN least(greatest(u.weight, 1), 100) END,
      u.weight IS NOT NULL,
      CASE WHEN u.slot_size > 0 THEN _write_jobs.slot_names[u.last_slot - u.slot_size + 1:u.last_slot] END,
      CASE WHEN u.slot_size > 0 THEN _write_jobs.slot_keys[u.last_slot - u.slot_size + 1:u.last_slot] END,
      CASE WHEN u.slot_size > 0 THEN _write_jobs.slot_counts[u.last_slot - u.slot_size + 1:u.last_slot] END
    FROM (
      SELECT u.*, sum(u.slot_size) OVER (ORDER BY u.nth)::integer AS last_slot
      FROM unnest(
        (SELECT job_keys), job_priorities, job_ats, job_not_befores, job_jitters, job_payloads, job_unique_ids, job_max_attempts,
        job_sizes, job_last_items, job_outcomes, job_slot_sizes, job_max_ages, job_weights
      ) WITH ORDINALITY AS u (
        key, priority, run_at, not_before, jitter, payload, unique_id, max_attempts, size, last_item, outcome, slot_size, max_age,
        weight, nth
      )
    ) AS u
    WHERE u.outcome = 'scheduled'
    ORDER BY u.nth
    ON CONFLICT (queue, unique_id) WHERE unique_id IS NOT NULL AND state NOT IN ('dead', 'cancelled') DO NOTHING
    RETURNING id, unique_id
  )
  SELECT array_agg(w.id), array_agg(w.unique_id) INTO written_ids, written_unique_ids FROM written AS w;
  IF cardinality(written_ids) = cardinality(job_keys) THEN
    RETURN written_ids;
  END IF;
  -- The ids are in the order of the jobs, without those that were left out.
  FOR nth IN 1 .. cardinality(job_keys) LOOP
    job_ids[nth] := NULL;
    IF job_outcomes[nth] = 'scheduled' AND written < cardinality(written_ids)
      AND written_unique_ids[written + 1] IS NOT DISTINCT FROM job_unique_ids[nth]
    THEN
      written := written + 1;
      job_ids[nth] := written_ids[written];
    END IF;
  END LOOP;
  RETURN job_ids;
END
$function$;
