-- rate_limit_two_counters_before(double precision, bigint, double precision[], bigint, bigint)
-- SHA-256: 35a7f3217bdd96d07c6852a14c55f926ec0ba93e2b553a4531f846b20cf9ea40

CREATE OR REPLACE FUNCTION public.rate_limit_two_counters_before(
  value double precision, ts bigint, earlier_counts double precision[], started bigint, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE WHEN ts >= started THEN earlier_counts[4] WHEN ts >= started - period THEN value ELSE 0 END
$function$;
COMMENT ON FUNCTION public.rate_limit_two_counters_before IS 'Returns the count of the window before the current one; inlined.';
