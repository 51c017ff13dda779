-- rate_limit_leases_at(double precision[], bigint)
-- SHA-256: ea7dd029ddb5e1712c1ed2c04811fcadd9c41540425486721a454e7f293ba108

-- concurrency: at most `capacity` slots are held at the same time. A call holds its count of slots under a lease: until it
-- releases them, or until the lease ends, `period` after it was taken or renewed. So a holder that has died frees its slots.
-- `value` is the number of slots that are held, and `earlier_counts` is {-1, end, -lease, count, end, -lease, count, ..}, by
-- end. Only ids are below -1, so none of them is mistaken for another number.
-- Source: leases as in C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
-- consistency", SOSP 1989.

-- Returns the leases of a row that end after `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_leases_at(earlier_counts double precision[], now bigint) RETURNS double precision[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  place integer := 2;
BEGIN
  IF (earlier_counts[1] = -1) IS NOT TRUE THEN -- There is no row, or one of another kind, which holds no slots.
    RETURN ARRAY[-1];
  END IF;
  WHILE earlier_counts[place] <= now LOOP
    place := place + 3;
  END LOOP;
  RETURN earlier_counts[1:1] || earlier_counts[place:];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_leases_at IS 'Returns the leases of a row that end after a time.';
