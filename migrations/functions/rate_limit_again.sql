-- rate_limit_again(rate_limit_jobs, text[], text[], double precision[], bigint[], double precision[], bigint[], integer[])
-- SHA-256: e2987cb6b26be34ed3e50895abd56e3c9c71f7bcd079923de851f1774de9f64f

-- Makes a new reservation of the tokens that the job had reserved, and returns when they are available. Limits that are no
-- longer defined are left out.
CREATE OR REPLACE FUNCTION public.rate_limit_again(
  job public.rate_limit_jobs, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  waits bigint[];
BEGIN
  SELECT d.call_waits INTO waits
  FROM (
    SELECT array_agg(u.name) AS names, array_agg(u.key) AS keys, array_agg(u.count) AS counts, array_agg(l.nth) AS limits
    FROM unnest(job.limit_names, job.limit_keys, job.counts) AS u (name, key, count)
    JOIN LATERAL (SELECT array_position(limit_names, u.name) AS nth) AS l ON l.nth IS NOT NULL
  ) AS i
  CROSS JOIN LATERAL public.rate_limit_decide(
    limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts, NULL, limit_shards, i.names, i.keys,
    NULL, i.limits, i.counts, NULL, ARRAY[true], ARRAY[cardinality(i.names)], NULL, NULL
  ) AS d
  WHERE i.names IS NOT NULL;
  RETURN public.rate_limit_clock() + coalesce(waits[1], 0);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_again IS 'Reserves the tokens of a job again and returns when they are available.';
