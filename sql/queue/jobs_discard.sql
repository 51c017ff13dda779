-- Deletes those of the given jobs that are dead and in this queue. Returns their ids.
CREATE OR REPLACE FUNCTION rate_limit._jobs_discard(queue_name text, job_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
BEGIN
  RETURN QUERY
  WITH dead AS (
    SELECT j.id
    FROM rate_limit.jobs AS j
    WHERE j.id = ANY ((SELECT job_ids)::bigint[]) AND j.queue = queue_name AND j.state = (SELECT 'dead')
    ORDER BY j.id
    FOR UPDATE
  )
  DELETE FROM rate_limit.jobs AS j
  USING dead AS d
  WHERE j.id = d.id
  RETURNING j.id;
END
$function$;
