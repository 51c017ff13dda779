-- Makes sure that the groups of these jobs, which wait for a turn, get one at these times or later. Each group has a row in
-- `turns` as long as it has such jobs. The caller's transaction may stay open for long. Until it ends, FOR KEY SHARE keeps
-- workers that do not see the jobs yet from deleting the row (_take_turns), and hinders neither claims nor other callers.
-- Only the first due job of a group that waits for a later time locks the row for longer.
CREATE OR REPLACE FUNCTION rate_limit._await_turns(queue_name text, job_keys text[], job_ats bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  keys text[];
  ats bigint[];
  kept integer;
BEGIN
  SELECT array_agg(w.key ORDER BY w.key), array_agg(w.at ORDER BY w.key) INTO keys, ats
  FROM (
    SELECT u.key COLLATE "C" AS key, min(u.at) AS at
    FROM unnest(job_keys, job_ats) AS u (key, at)
    WHERE u.at IS NOT NULL
    GROUP BY u.key COLLATE "C"
  ) AS w;
  LOOP
    SELECT count(*) INTO kept
    FROM (
      SELECT
      FROM unnest((SELECT keys)) AS k (key)
      JOIN rate_limit.turns AS t ON t.queue = queue_name AND t.key = k.key
      ORDER BY t.key
      FOR KEY SHARE OF t
    ) AS t;
    EXIT WHEN kept >= coalesce(cardinality(keys), 0);
    INSERT INTO rate_limit.turns (queue, key, wanted_at)
    SELECT queue_name, u.key, u.at
    FROM unnest((SELECT keys), ats) AS u (key, at)
    ORDER BY u.key
    ON CONFLICT ON CONSTRAINT turns_pkey DO NOTHING;
  END LOOP;
  WITH late AS (
    SELECT t.key, u.at
    FROM unnest((SELECT keys), ats) AS u (key, at)
    JOIN rate_limit.turns AS t ON t.queue = queue_name AND t.key = u.key AND t.wanted_at > u.at
    ORDER BY t.key
    FOR NO KEY UPDATE OF t
  )
  UPDATE rate_limit.turns AS t
  SET wanted_at = l.at
  FROM late AS l
  WHERE t.queue = queue_name AND t.key = l.key;
END
$function$;
COMMENT ON FUNCTION rate_limit._await_turns IS 'Lets groups have a turn for their new jobs.';
