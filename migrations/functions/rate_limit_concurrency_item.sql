-- rate_limit_concurrency_item(rate_limits, text, double precision, boolean, bigint, bigint, double precision, bigint)
-- SHA-256: fa33edf0629d5bd98f94c3d40ba9ccf598a9dc1d641be512c728a81e992b9aff

-- Decides one item of a call on one row in memory, as rate_limit_item does for the other kinds.
--
--   op       limit: take the slots under this lease; release: give them back; renew: let the lease end `period` after now.
--            Release and renew are refused if the lease has ended. Also check and reset
CREATE OR REPLACE FUNCTION public.rate_limit_concurrency_item(
  bucket public.rate_limits, op text, count double precision, reserves boolean, at bigint, period bigint,
  capacity double precision, lease bigint, OUT bucket_after public.rate_limits, OUT is_allowed boolean, OUT is_changed boolean,
  OUT wait bigint, OUT balance double precision, OUT remaining double precision
) LANGUAGE plpgsql IMMUTABLE
AS $function$
#variable_conflict use_variable
DECLARE
  -- A clock that steps back ends no lease later.
  now CONSTANT bigint := greatest(at, bucket.ts);
  leases double precision[] := public.rate_limit_leases_at(bucket.earlier_counts, now);
  place CONSTANT integer := array_position(leases, - lease::double precision);
  held double precision := 0;
  place_of_count integer;
BEGIN
  PERFORM public.rate_limit_concurrency_guard(bucket.name, op, count, reserves, capacity, lease, place IS NOT NULL);
  IF bucket.earlier_counts[1] = -1 THEN
    held := bucket.value;
    FOR nth IN 1 .. (cardinality(bucket.earlier_counts) - cardinality(leases)) / 3 LOOP
      held := held - bucket.earlier_counts[3 * nth + 1];
    END LOOP;
  END IF;
  balance := capacity - held;
  remaining := balance;
  bucket_after := bucket;
  IF op = 'peek' THEN -- until no slot is held
    is_allowed := true;
    is_changed := false;
    wait := greatest(leases[cardinality(leases) - 2]::bigint - at, 0);
    RETURN;
  ELSIF op = 'limit' OR op = 'check' THEN
    is_allowed := count <= balance OR count = 0;
    IF is_allowed THEN
      remaining := balance - count;
      leases := public.rate_limit_leases_with(leases, lease, count, now + period);
    ELSE
      place_of_count := 1;
      WHILE balance < count LOOP
        place_of_count := place_of_count + 3;
        balance := balance + leases[place_of_count];
      END LOOP;
      wait := leases[place_of_count - 2]::bigint - at;
      balance := remaining;
    END IF;
    is_changed := op = 'limit' AND is_allowed;
  ELSIF op = 'reset' THEN
    is_allowed := true;
    is_changed := bucket.ts IS NOT NULL;
    bucket_after.ts := NULL;
    remaining := capacity;
    RETURN;
  ELSE
    is_allowed := place IS NOT NULL;
    is_changed := is_allowed;
    IF is_allowed THEN
      count := leases[place + 1];
      leases := leases[: place - 2] || leases[place + 2 :];
      IF op = 'renew' THEN
        leases := public.rate_limit_leases_with(leases, lease, count, now + period);
      ELSE
        remaining := balance + count;
      END IF;
    END IF;
  END IF;
  bucket_after.value := capacity - remaining;
  bucket_after.ts := now;
  bucket_after.earlier_counts := leases;
  bucket_after.idle_at := greatest(now, leases[cardinality(leases) - 2]::bigint);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_concurrency_item IS 'Decides one item of a call on a row of leases in memory.';
