-- Makes a new reservation of the tokens that the job had reserved, and returns when they are available. Limits that are no
-- longer defined are left out.
CREATE OR REPLACE FUNCTION rate_limit._again(
  job rate_limit.jobs, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  ready bigint;
BEGIN
  SELECT d.decided_at + coalesce(d.call_waits[1], 0) INTO ready
  FROM (
    SELECT array_agg(u.name) AS names, array_agg(u.key) AS keys, array_agg(u.count) AS counts, array_agg(l.nth) AS limits
    FROM unnest(job.limit_names, job.limit_keys, job.counts) AS u (name, key, count)
    JOIN LATERAL (SELECT array_position(limit_names, u.name) AS nth) AS l ON l.nth IS NOT NULL
  ) AS i
  CROSS JOIN LATERAL rate_limit._decide(
    limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts, NULL, limit_shards, i.names, i.keys,
    NULL, i.limits, i.counts, NULL, ARRAY[true], ARRAY[cardinality(i.names)], NULL, NULL
  ) AS d
  WHERE i.names IS NOT NULL;
  RETURN coalesce(ready, rate_limit._clock());
END
$function$;
