-- Lets jobs that cannot start yet take the tokens of one of their items ahead. A bucket without a debt allows that, and then
-- owes up to the job's count. A job that did not stop its group before, and is not `turn_id`, only asks and takes nothing. Nor
-- does one that would pay ahead of a job with a higher priority, among the first jobs of the 100 groups that ask next.
--
--   items      the item of each job: an index into its limit_names, limit_keys and counts
--   ats        the time as of which each job pays
--   ready_ats  when the limits let each job start
--   results    untils: when each job starts, if it has paid, or asks again. payers: the jobs that have paid
CREATE OR REPLACE FUNCTION rate_limit._pay_ahead(
  job_ids bigint[], items integer[], ats bigint[], ready_ats bigint[], turn_id bigint, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[],
  OUT untils bigint[], OUT payers bigint[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  urgent_ids CONSTANT bigint[] := ARRAY(
    SELECT j.id
    FROM (
      SELECT g.refused_job
      FROM rate_limit.groups AS g
      WHERE g.queue = (SELECT j.queue FROM rate_limit.jobs AS j WHERE j.id = job_ids[1]) AND g.has_line
        AND g.not_before <= (SELECT max(r) + 1100 FROM unnest(ready_ats) AS r)
      ORDER BY g.not_before
      LIMIT 100
    ) AS g
    JOIN rate_limit.jobs AS j ON j.id = g.refused_job
    WHERE j.state = ANY ((SELECT ARRAY['scheduled', 'available'])::text[])
      AND j.priority > (SELECT min(p.priority) FROM rate_limit.jobs AS p WHERE p.id = ANY ((SELECT job_ids)::bigint[]))
  );
  ops text[];
  admitted integer[];
  waits bigint[];
BEGIN
  SELECT p.ops, d.call_admitted, d.call_waits INTO ops, admitted, waits
  FROM (
    SELECT
      array_agg(j.limit_names[p.item] ORDER BY p.nth) AS names,
      array_agg(j.limit_keys[p.item] ORDER BY p.nth) AS keys,
      array_agg(j.counts[p.item] ORDER BY p.nth) AS counts,
      array_agg(array_position(_pay_ahead.limit_names, j.limit_names[p.item]) ORDER BY p.nth) AS limits,
      array_agg(
        CASE
          WHEN j.id = turn_id THEN 'limit'
          WHEN j.id = g.refused_job AND NOT EXISTS (
            SELECT
            FROM rate_limit.jobs AS u
            CROSS JOIN LATERAL unnest(u.limit_names, u.limit_keys) AS i (name, key)
            WHERE u.id = ANY ((SELECT urgent_ids)::bigint[]) AND u.priority > j.priority
              AND i.name = j.limit_names[p.item] AND i.key = j.limit_keys[p.item]
          )
          THEN 'limit'
          ELSE 'check'
        END ORDER BY p.nth) AS ops
    FROM unnest((SELECT job_ids), items) WITH ORDINALITY AS p (id, item, nth)
    JOIN rate_limit.jobs AS j ON j.id = p.id
    JOIN rate_limit.groups AS g ON g.queue = j.queue AND g.key = j.key
  ) AS p
  CROSS JOIN LATERAL rate_limit._decide_started(
    p.names, p.keys, p.counts, p.limits, NULL, p.counts, p.ops, array_fill(true, ARRAY[cardinality(p.ops)]),
    array_fill(1, ARRAY[cardinality(p.ops)]), NULL, ats, limit_kinds, limit_rates, limit_periods, limit_capacities,
    limit_starts
  ) AS d;

  WITH payments AS (
    SELECT
      p.nth, p.id, p.item, p.op = 'limit' AND p.is_admitted AS has_paid,
      CASE
        -- The wait ends when the bucket has no debt. The jobs ask again right after that, within a millisecond, the ones that
        -- have waited longest first.
        WHEN NOT p.is_admitted THEN p.paid_at + 1 + (1e9 / (1e6 + greatest(p.paid_at - j.run_at, 0)))::bigint
        WHEN p.op = 'check' THEN p.ready_at
        ELSE p.paid_at
      END AS until
    FROM (
      SELECT p.*, coalesce(p.admitted, 1) = 1 AS is_admitted, p.at + coalesce(p.wait, 0) AS paid_at
      FROM unnest((SELECT job_ids), items, ats, ready_ats, ops, admitted, waits) WITH ORDINALITY
        AS p (id, item, at, ready_at, op, admitted, wait, nth)
    ) AS p
    JOIN rate_limit.jobs AS j ON j.id = p.id
  ),
  paid AS (
    UPDATE rate_limit.jobs AS j
    SET paid_until = p.until, paid_item = p.item
    FROM payments AS p
    WHERE j.id = p.id AND p.has_paid
  )
  SELECT array_agg(p.until ORDER BY p.nth), array_agg(p.id) FILTER (WHERE p.has_paid) INTO untils, payers
  FROM payments AS p;
END
$function$;
