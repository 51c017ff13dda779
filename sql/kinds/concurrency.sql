-- concurrency: at most `capacity` slots are held at the same time. A call holds its count of slots under a lease: until it
-- releases them, or until the lease ends, `period` after it was taken or renewed. So a holder that has died frees its slots.
-- `value` is the number of slots that are held, and `detail` is {-1, end, -lease, count, end, -lease, count, ..}, by
-- end. Only ids are below -1, so none of them is mistaken for another number.
-- Source: leases as in C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
-- consistency", SOSP 1989.

-- Returns the leases of a row that end after `now`.
CREATE OR REPLACE FUNCTION rate_limit._leases_at(detail double precision[], now bigint) RETURNS double precision[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
DECLARE
  place integer := 2;
BEGIN
  IF (detail[1] = -1) IS NOT TRUE THEN -- There is no row, or one of another kind, which holds no slots.
    RETURN ARRAY[-1];
  END IF;
  WHILE detail[place] <= now LOOP
    place := place + 3;
  END LOOP;
  RETURN detail[1:1] || detail[place:];
END
$function$;

-- Returns the leases and one more.
CREATE OR REPLACE FUNCTION rate_limit._leases_with(
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

-- Decides one item of a call on one row in memory, as _item does for the other kinds.
--
--   op       limit: take the slots under this lease; release: give them back; renew: let the lease end `period` after now.
--            Release and renew are refused if the lease has ended. Also check and reset
CREATE OR REPLACE FUNCTION rate_limit._concurrency_item(
  bucket rate_limit.rate_limits, op text, count double precision, reserves boolean, at bigint, period bigint,
  capacity double precision, lease bigint,
  OUT bucket_after rate_limit.rate_limits, OUT is_allowed boolean, OUT is_changed boolean,
  OUT wait bigint, OUT balance double precision, OUT remaining double precision
) LANGUAGE plpgsql IMMUTABLE
AS $function$
#variable_conflict use_variable
DECLARE
  -- A clock that steps back ends no lease later.
  now CONSTANT bigint := greatest(at, bucket.ts);
  leases double precision[] := rate_limit._leases_at(bucket.detail, now);
  place CONSTANT integer := array_position(leases, - lease::double precision);
  held double precision := 0;
  place_of_count integer;
BEGIN
  IF op NOT IN ('limit', 'check', 'peek', 'reset', 'release', 'renew') OR reserves THEN
    RAISE EXCEPTION 'reserve_unsupported: the concurrency limit "%" cannot %', bucket.name,
      CASE WHEN reserves THEN 'reserve' ELSE op END
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Acquire slots, and release or renew them.';
  ELSIF op IN ('limit', 'release', 'renew') AND NOT coalesce(lease BETWEEN 2 AND 9007199254740991, false) THEN
    RAISE EXCEPTION 'invalid_lease: the lease % of the concurrency limit "%" is not a number from 2 to 9007199254740991',
      coalesce(lease::text, 'NULL'), bucket.name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use acquire_with, which returns a lease.';
  ELSIF op = 'limit' AND place IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_lease: the lease % of the concurrency limit "%" is already held', lease, bucket.name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Renew it, or use another number.';
  ELSIF op = 'limit' OR (op = 'check' AND count <> 0) THEN
    IF count < 1 OR count <> floor(count) THEN
      RAISE EXCEPTION 'invalid_count: the count % for the concurrency limit "%" is not a whole number from 1 on', count,
        bucket.name
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Count whole slots.';
    ELSIF count > capacity THEN
      RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
        count, bucket.name, capacity
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower the count, or raise the capacity.';
    END IF;
  END IF;
  IF bucket.detail[1] = -1 THEN
    held := bucket.value;
    FOR nth IN 1 .. (cardinality(bucket.detail) - cardinality(leases)) / 3 LOOP
      held := held - bucket.detail[3 * nth + 1];
    END LOOP;
  END IF;
  balance := capacity - held;
  remaining := balance;
  bucket_after := bucket;
  IF bucket.detail[1] = -2 AND bucket.ts - bucket.value > now AND op IN ('limit', 'check', 'peek') THEN -- Blocked: see _item.
    is_allowed := op = 'peek';
    is_changed := false;
    wait := bucket.ts - bucket.value - at;
    balance := 0;
    remaining := 0;
    RETURN;
  END IF;
  IF op = 'peek' THEN -- until no slot is held
    is_allowed := true;
    is_changed := false;
    wait := greatest(leases[cardinality(leases) - 2]::bigint - at, 0);
    RETURN;
  ELSIF op = 'limit' OR op = 'check' THEN
    is_allowed := count <= balance OR count = 0;
    IF is_allowed THEN
      remaining := balance - count;
      leases := rate_limit._leases_with(leases, lease, count, now + period);
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
    bucket_after.detail := NULL; -- Later calls of the same batch find no lease.
    remaining := capacity;
    RETURN;
  ELSE
    is_allowed := place IS NOT NULL;
    is_changed := is_allowed;
    IF is_allowed THEN
      count := leases[place + 1];
      leases := leases[: place - 2] || leases[place + 2 :];
      IF op = 'renew' THEN
        leases := rate_limit._leases_with(leases, lease, count, now + period);
      ELSE
        remaining := balance + count;
      END IF;
    END IF;
  END IF;
  bucket_after.value := capacity - remaining;
  bucket_after.ts := now;
  bucket_after.detail := leases;
  bucket_after.idle_at := greatest(now, leases[cardinality(leases) - 2]::bigint);
END
$function$;
