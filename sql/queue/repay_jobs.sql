-- Returns the payments of jobs at hand that have paid ahead, once their time has come, so that they ask again. Returns the
-- ids of these jobs. If something was taken from the bucket since that time, no tokens are returned: they were already used.
--
-- First it locks all buckets of the jobs at hand. The claim takes from them in several statements, which would otherwise lock
-- buckets in a different order than other claims.
CREATE OR REPLACE FUNCTION rate_limit._repay_jobs(
  job_ids bigint[], groups rate_limit.groups[], clock bigint, horizon bigint, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[]
) RETURNS bigint[] LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  repaid_ids bigint[];
BEGIN
  PERFORM rate_limit._lock_buckets(array_agg(i.name || '/started'), array_agg(i.key))
  FROM rate_limit.jobs AS j
  CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys) AS i (name, key)
  WHERE j.id = ANY ((SELECT job_ids)::bigint[]);

  repaid_ids := ARRAY(
    SELECT j.id
    FROM rate_limit.jobs AS j
    JOIN unnest((SELECT groups)) AS g ON g.key = j.key
    WHERE j.id = ANY ((SELECT job_ids)::bigint[]) AND j.paid_until <= (SELECT horizon)
  );
  PERFORM rate_limit._correct_started(
    array_agg(p.name), array_agg(p.key), array_agg(p.count), array_agg(- p.count), array_agg(p.at), limit_names,
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts)
  FROM (
    SELECT
      j.limit_names[j.paid_item] AS name, j.limit_keys[j.paid_item] AS key, j.counts[j.paid_item] AS count,
      greatest(j.run_at, clock, g.not_before, j.paid_until) AS at, j.paid_until
    FROM unnest((SELECT repaid_ids)) AS u (id)
    JOIN rate_limit.jobs AS j ON j.id = u.id
    JOIN unnest((SELECT groups)) AS g ON g.key = j.key
  ) AS p
  WHERE ((rate_limit._bucket_rows(p.name || '/started', p.key, 1, false, false))[1]).ts < p.paid_until
  HAVING count(*) > 0;
  RETURN repaid_ids;
END
$function$;
