-- Makes up to `most` dead jobs of a queue, or of one of its groups, run once more: see _job_requeue. Those that died first are
-- first. If several jobs have the same unique id, one runs, and none if another job has the id: they stay dead. Returns how many
-- run; 0: there are no others. The key is the group as it is stored; NULL: all groups. Without limit_*, the stored limits apply.
-- Jobs that died after died_before stay dead: a caller that repeats the call does not run jobs twice.
CREATE OR REPLACE FUNCTION rate_limit.requeue_dead(
  queue text, key text DEFAULT NULL, most integer DEFAULT 1000, limit_names text[] DEFAULT NULL, limit_kinds text[] DEFAULT NULL,
  limit_rates double precision[] DEFAULT NULL, limit_periods bigint[] DEFAULT NULL,
  limit_capacities double precision[] DEFAULT NULL, limit_starts bigint[] DEFAULT NULL, limit_shards integer[] DEFAULT NULL,
  died_before bigint DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  dead_ids bigint[];
  requeued bigint := 0;
BEGIN
  IF limit_names IS NULL THEN
    SELECT
      array_agg(d.name), array_agg(d.kind), array_agg(d.rate), array_agg(d.period), array_agg(d.capacity),
      array_agg(d.start), array_agg(d.shards)
    INTO limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_shards
    FROM (
      SELECT DISTINCT ON (d.name) d.*
      FROM rate_limit.definitions AS d
      ORDER BY d.name, d.version DESC
    ) AS d
    WHERE d.kind IS NOT NULL;
  END IF;
  dead_ids := ARRAY(
    SELECT d.id
    FROM (
      SELECT DISTINCT ON (j.unique_id, CASE WHEN j.unique_id IS NULL THEN j.id END) j.id, j.finished_at
      FROM (
        SELECT j.id, j.unique_id, j.finished_at
        FROM rate_limit.jobs AS j
        WHERE j.queue = requeue_dead.queue AND j.state = 'dead' AND j.key = coalesce(requeue_dead.key, j.key)
          AND j.finished_at <= coalesce(died_before, j.finished_at)
          AND NOT EXISTS (
            SELECT
            FROM rate_limit.jobs AS o
            WHERE o.queue = j.queue AND o.unique_id = j.unique_id AND o.state NOT IN ('dead', 'cancelled')
          )
        ORDER BY j.finished_at
        LIMIT most
      ) AS j
      ORDER BY j.unique_id, CASE WHEN j.unique_id IS NULL THEN j.id END, j.id DESC
    ) AS d
    ORDER BY d.finished_at, d.id
  );
  PERFORM rate_limit._lock_buckets(array_agg(i.name), array_agg(i.key))
  FROM rate_limit.jobs AS j
  CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS i (name, key)
  WHERE j.id = ANY ((SELECT dead_ids)::bigint[]);
  -- In their order, too, the rows of groups that wait for turns.
  PERFORM rate_limit._await_turns(requeue_dead.queue, array_agg(j.key), array_agg(greatest(rate_limit._clock(), j.not_before)))
  FROM rate_limit.jobs AS j
  WHERE j.id = ANY ((SELECT dead_ids)::bigint[]) AND j.weight IS NOT NULL
  HAVING count(*) > 0;
  FOR nth IN 1 .. cardinality(dead_ids) LOOP
    IF rate_limit._job_requeue(
      queue, dead_ids[nth], coalesce(limit_names, '{}'), limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts,
      limit_shards) IS NOT NULL
    THEN
      requeued := requeued + 1;
    END IF;
  END LOOP;
  RETURN requeued;
END
$function$;
COMMENT ON FUNCTION rate_limit.requeue_dead IS 'Makes the dead jobs of a queue or a group run once more.';
