-- rate_limit_leases_with(double precision[], bigint, double precision, bigint)
-- SHA-256: da071537a8ac39bb4b0129de81fa1bff1cb476e23f3f74d05313cde993c07c04

-- Returns the leases and one more.
CREATE OR REPLACE FUNCTION public.rate_limit_leases_with(
  leases double precision[], lease bigint, count double precision, ends_at bigint
) RETURNS double precision[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  last integer := cardinality(leases); -- before the new one
BEGIN
  WHILE last > 1 AND leases[last - 2] > ends_at LOOP -- It was taken when the limit had a longer lease.
    last := last - 3;
  END LOOP;
  RETURN leases[: last] || ARRAY[ends_at, - lease, count]::double precision[] || leases[last + 1 :];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_leases_with IS 'Returns the leases and one more.';
