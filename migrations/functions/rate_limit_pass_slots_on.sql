-- rate_limit_pass_slots_on(rate_limits, double precision, bigint)
-- SHA-256: 93ed19805f04856e7a01aa3d1e1b7519e487e0cddab9b1c9c4138c89e5273368

-- Ends a claim's decisions on a bucket of slots. If slots are still free, it wakes groups that can take them. Otherwise the
-- first group that waits looks again when the next lease ends.
CREATE OR REPLACE FUNCTION public.rate_limit_pass_slots_on(
  bucket public.rate_limits, capacity double precision, clock bigint
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  leases double precision[];
  free double precision := capacity;
BEGIN
  IF bucket.ts IS NULL THEN
    RETURN;
  END IF;
  leases := public.rate_limit_leases_at(bucket.earlier_counts, greatest(clock, bucket.ts));
  FOR nth IN 1 .. cardinality(leases) / 3 LOOP
    free := free - leases[3 * nth + 1];
  END LOOP;
  PERFORM public.rate_limit_wake_groups(
    bucket.name, bucket.key, greatest(free, 0)::integer, free, leases[2]::bigint, true);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_pass_slots_on IS 'Wakes groups that can take the slots that a claim has left free.';
