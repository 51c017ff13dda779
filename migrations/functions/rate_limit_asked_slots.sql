-- rate_limit_asked_slots(double precision[], bigint[], text[], text[], integer[], text[], double precision[], bigint[])
-- SHA-256: 530f20cd6041adf6122d095bab49215538766cc752769827bf3df6ca4cc3c750

-- Returns the valid calls of rate_limit_take_slots; `id` is the lease as it is stored. Inlined.
CREATE OR REPLACE FUNCTION public.rate_limit_asked_slots(
  limit_rates double precision[], limit_periods bigint[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  call_ops text[], call_counts double precision[], call_leases bigint[]
) RETURNS TABLE (
  nth integer, name text, key text, op text, count double precision, id double precision, capacity double precision,
  period bigint
) LANGUAGE sql STABLE
AS $function$
  SELECT
    u.nth::integer, u.name, u.key, u.op, u.count, - u.lease::double precision, limit_rates[u.nth_limit],
    limit_periods[u.nth_limit]
  -- The sub-select hides the number of buckets from the planner, which would otherwise make a new plan for each small number.
  FROM unnest((SELECT bucket_names), bucket_keys, bucket_limits, call_ops, call_counts, call_leases)
    WITH ORDINALITY AS u (name, key, nth_limit, op, count, lease, nth)
  WHERE u.op IN ('limit', 'release', 'renew') AND u.lease BETWEEN 2 AND 9007199254740991
    AND limit_rates[u.nth_limit] BETWEEN 1 AND 1e100 AND limit_periods[u.nth_limit] BETWEEN 1 AND 3155760000000000
    AND u.count >= 1 AND u.count = floor(u.count)
$function$;
COMMENT ON FUNCTION public.rate_limit_asked_slots IS 'Returns the valid calls of rate_limit_take_slots; inlined.';
