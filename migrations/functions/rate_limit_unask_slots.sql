-- rate_limit_unask_slots(bigint, bigint, rate_limits[])
-- SHA-256: 6c46c4cdb9c621a337b3c7c666d39b115970531ed7576e909765d8800c45485a

-- Gives the slots of a lease back in memory, and returns the rows after that.
CREATE OR REPLACE FUNCTION public.rate_limit_unask_slots(
  lease bigint, clock bigint, INOUT buckets public.rate_limits[]
) LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  released record;
BEGIN
  FOR nth IN 1 .. cardinality(buckets) LOOP
    IF array_position((buckets[nth]).earlier_counts, - lease::double precision) IS NOT NULL THEN
      released := public.rate_limit_concurrency_item(buckets[nth], 'release', 1, false, clock, 1, 1, lease);
      buckets[nth] := released.bucket_after;
    END IF;
  END LOOP;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_unask_slots IS 'Gives slots back that a claim has taken in memory.';
