-- Takes jobs that wait, and that this worker cannot start, out of the way of claims. Writes which limit is missing, or is of
-- another kind. A worker that knows the limit takes them back (_prepare_claim). Skips jobs of groups that other claims have
-- locked, which may start later jobs of the group; locked jobs; and jobs that have paid ahead. Returns the limits.
CREATE OR REPLACE FUNCTION rate_limit._block_jobs(job_ids bigint[], limit_names text[], slot_limit_names text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  names text[];
  keys text[];
BEGIN
  keys := ARRAY(
    SELECT g.key
    FROM (
      SELECT DISTINCT j.queue, j.key
      FROM rate_limit.jobs AS j
      WHERE j.id = ANY ((SELECT job_ids)::bigint[])
    ) AS k
    JOIN rate_limit.groups AS g ON g.queue = k.queue AND g.key = k.key
    ORDER BY g.key
    FOR NO KEY UPDATE OF g SKIP LOCKED
  );
  WITH unknown AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY ((SELECT job_ids)::bigint[]) AND j.paid_until IS NULL
      AND j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
      -- A group that no claim has seen yet has no row to lock. It is not inserted: that would wait for other claims.
      AND (j.key = ANY ((SELECT keys)::text[]) OR NOT EXISTS (
        SELECT
        FROM rate_limit.groups AS g
        WHERE g.queue = j.queue AND g.key = j.key
      ))
    FOR NO KEY UPDATE SKIP LOCKED
  ),
  blocked AS (
    UPDATE rate_limit.jobs AS j
    SET
      state = 'scheduled',
      blocked_by = coalesce(
        (
          SELECT n.name
          FROM unnest(j.limit_names) AS n (name)
          WHERE n.name <> ALL (_block_jobs.limit_names)
          LIMIT 1
        ),
        (
          SELECT n.name || '/slots'
          FROM unnest(j.slot_names) AS n (name)
          WHERE n.name <> ALL (slot_limit_names)
          LIMIT 1
        ))
    FROM unknown AS u
    WHERE j.id = u.id
    RETURNING j.blocked_by
  )
  SELECT array_agg(DISTINCT b.blocked_by) INTO names
  FROM blocked AS b;
  RETURN names;
END
$function$;
