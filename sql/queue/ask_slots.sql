-- Takes the slots of the next jobs of each group in memory, in one round of a claim, in the order of the jobs. A job without a
-- concurrency limit needs none. A job without other limits starts at once. Any other job is the last one of its group in this
-- round: it starts if its limits allow that, too.
--
--   groups     the groups that go on
--   ahead      how long before a job's time it is claimed, in microseconds
--   slot_*     the concurrency limits that the worker knows
--   buckets    the rows of _lock_slots, and these rows after the slots were taken
--   results    holder_ids took slots, under holder_leases; started_ids of these start at started_ats. asking: in these groups,
--              the next job has other limits. waiting: in these groups, the next job found too few free slots; they have the
--              bucket, and the time at which the slots are free at the latest (not_before)
CREATE OR REPLACE FUNCTION rate_limit._ask_slots(
  job_ids bigint[], begun_ids bigint[], groups rate_limit.groups[], clock bigint, ahead bigint, slot_limit_names text[],
  slot_capacities double precision[], slot_periods bigint[], INOUT buckets rate_limit.rate_limits[],
  OUT holder_ids bigint[], OUT holder_leases bigint[], OUT started_ids bigint[], OUT started_ats bigint[],
  OUT asking rate_limit.groups[], OUT waiting rate_limit.groups[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_variable
DECLARE
  open_keys text[] := ARRAY(SELECT g.key FROM unnest(groups) AS g);
  place integer;
  job record;
  job_group rate_limit.groups;
  needed record; -- one element for each of the job's slot items
  lease bigint;
  decided record;
  refused integer;
BEGIN
  holder_ids := '{}';
  holder_leases := '{}';
  started_ids := '{}';
  started_ats := '{}';
  asking := '{}';
  waiting := '{}';
  FOR job IN
    SELECT j.id, j.key, j.run_at, j.limit_names, j.slot_names, j.slot_keys, j.slot_counts
    FROM unnest((SELECT job_ids)) WITH ORDINALITY AS u (id, nth)
    JOIN rate_limit.jobs AS j ON j.id = u.id
    WHERE u.id <> ALL (begun_ids)
    ORDER BY u.nth
  LOOP
    place := array_position(open_keys, job.key);
    CONTINUE WHEN place IS NULL;
    job_group := groups[place];
    IF job.slot_names IS NULL THEN
      asking := asking || job_group;
      open_keys[place] := NULL;
      CONTINUE;
    END IF;
    SELECT
      array_agg(b.nth::integer ORDER BY s.nth) AS buckets, array_agg(l.nth ORDER BY s.nth) AS limits,
      -- The limit may have fewer slots than when the job was enqueued. Then the job takes all of them.
      array_agg(least(s.count, slot_capacities[l.nth]) ORDER BY s.nth) AS counts,
      min(s.nth) FILTER (WHERE b.ts IS NULL)::integer AS busy
    INTO needed
    FROM unnest(job.slot_names, job.slot_keys, job.slot_counts) WITH ORDINALITY AS s (name, key, count, nth)
    CROSS JOIN LATERAL (SELECT array_position(slot_limit_names, s.name) AS nth) AS l
    JOIN (
      SELECT b.name, b.key, b.ts, b.nth
      FROM unnest(buckets) WITH ORDINALITY AS b (name, key, shard, shards, value, ts, idle_at, detail, nth)
    ) AS b ON b.name = s.name AND b.key = s.key;
    refused := needed.busy;
    IF refused IS NULL THEN
      lease := floor(random() * 9007199254740990)::bigint + 2;
      decided := rate_limit._decide_rows(
        array_fill('concurrency'::text, ARRAY[cardinality(slot_limit_names)]), slot_capacities, slot_periods, NULL, NULL, NULL,
        NULL, buckets, NULL, needed.buckets, needed.limits, needed.counts, ARRAY['limit'], NULL,
        ARRAY[cardinality(needed.buckets)], NULL, NULL, ARRAY[lease], clock, NULL, NULL, NULL, NULL);
      IF decided.call_admitted[1] = 1 THEN
        buckets := decided.buckets;
        holder_ids := holder_ids || job.id;
        holder_leases := holder_leases || lease;
        IF job.limit_names = '{}' THEN
          started_ids := started_ids || job.id;
          started_ats := started_ats || greatest(job.run_at, clock, job_group.not_before);
        ELSE
          asking := asking || job_group;
          open_keys[place] := NULL;
        END IF;
        CONTINUE;
      END IF;
      refused := array_position(decided.item_refused, true);
      job_group.slot_pause := NULL;
      job_group.not_before := clock + ahead + coalesce(decided.call_waits[1], 0);
    ELSE
      job_group.slot_pause := least(greatest(2 * coalesce(job_group.slot_pause, 0), 5000), 1000000);
      job_group.not_before := clock + ahead + job_group.slot_pause;
    END IF;
    job_group.slot_name := job.slot_names[refused];
    job_group.slot_key := job.slot_keys[refused];
    job_group.slot_count := needed.counts[refused];
    job_group.slot_since := job.run_at;
    waiting := waiting || job_group;
    open_keys[place] := NULL;
  END LOOP;
END
$function$;

-- Gives the slots of a lease back in memory, and returns the rows after that.
CREATE OR REPLACE FUNCTION rate_limit._unask_slots(
  lease bigint, clock bigint, INOUT buckets rate_limit.rate_limits[]
) LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  released record;
BEGIN
  FOR nth IN 1 .. cardinality(buckets) LOOP
    IF array_position((buckets[nth]).detail, - lease::double precision) IS NOT NULL THEN
      released := rate_limit._concurrency_item(buckets[nth], 'release', 1, false, clock, 1, 1, lease);
      buckets[nth] := released.bucket_after;
    END IF;
  END LOOP;
END
$function$;
