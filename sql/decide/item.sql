-- Decides one item of a call on one row in memory, and reads no table. It returns whether the item is allowed at the time
-- `at`, and the row after it. A row without `ts` means that the bucket has no row.
--
--   op             limit | check | peek | credit | charge | reset
--   max_reserved   how far a reservation may take the balance below 0; NULL: as far as numbers are exact. Negative: the headroom,
--                  which a call without a reservation must leave in the bucket
--   bucket_after   the row after the item, if it is allowed; without `ts` if the row is to be deleted
--   is_changed     whether bucket_after differs from `bucket`
--   wait           in microseconds: until the tokens of a reservation have arrived, or until a denied item would be allowed. A
--                  peek returns the time until the end of the window or, for other kinds, until the bucket is full
--   balance        before the item
--   remaining      after the item; for a denial, the balance
CREATE OR REPLACE FUNCTION rate_limit._item(
  bucket rate_limit.rate_limits, op text, count double precision, reserves boolean, at bigint, kind text, rate double precision,
  period bigint, capacity double precision, max_reserved double precision, phase bigint, resolution integer,
  OUT bucket_after rate_limit.rate_limits, OUT is_allowed boolean, OUT is_changed boolean, OUT wait bigint,
  OUT balance double precision, OUT remaining double precision
) LANGUAGE plpgsql IMMUTABLE
AS $function$
#variable_conflict use_variable
DECLARE
  -- A clock that steps back removes no tokens.
  now CONSTANT bigint := greatest(at, bucket.ts);
  taken record;
  untaken record;
  tolerance double precision; -- the largest rounding error of a balance, in tokens
  least_balance double precision := 0; -- the lowest balance that the item may leave
  slack double precision; -- the tolerance at that balance
BEGIN
  IF bucket.detail[1] = -2 AND kind <> 'gate' AND op <> 'reset' AND bucket.ts - bucket.value > now THEN
    -- The key was blocked under a name that is no gate, before a row showed this. It is denied until the block has ended, and has
    -- no tokens that a charge or a credit could change.
    IF op IN ('charge', 'credit') THEN
      bucket_after := bucket;
      is_allowed := true;
      is_changed := false;
      balance := 0;
      remaining := 0;
      RETURN;
    END IF;
    kind := 'gate';
    rate := 1;
    period := 1;
    capacity := 0;
    count := 0;
    reserves := false;
    max_reserved := NULL;
  END IF;
  is_changed := false;
  bucket_after := rate_limit._adopt(kind, bucket, now, rate, period, capacity, phase, resolution);
  IF op = 'credit' OR op = 'reset' THEN
    is_changed := bucket.ts IS NOT NULL;
    IF op = 'reset' AND is_changed THEN
      bucket_after.ts := NULL;
      bucket_after := rate_limit._adopt(kind, bucket_after, now, rate, period, capacity, phase, resolution);
    ELSIF is_changed THEN
      bucket_after := (rate_limit._take_from(
        kind, bucket_after, now, rate, period, capacity, phase, resolution, 0)).after;
      bucket_after := rate_limit._credited(kind, bucket_after, count, capacity);
      bucket_after := (rate_limit._take_from(
        kind, bucket_after, now, rate, period, capacity, phase, resolution, 0)).after;
    END IF;
    count := 0;
  END IF;
  taken := rate_limit._take_from(kind, bucket_after, now, rate, period, capacity, phase, resolution, count);
  balance := taken.remaining + count;
  IF balance IS NULL THEN
    RAISE EXCEPTION 'the limit "%" has the unknown kind "%"', bucket.name, kind
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call _validate.';
  END IF;
  tolerance := rate_limit._tolerance(capacity, balance);
  remaining := taken.remaining;
  is_allowed := true;
  IF max_reserved < 0 AND (reserves OR op NOT IN ('limit', 'check')) THEN
    RAISE EXCEPTION 'leave_unsupported: % of the limit "%" cannot leave tokens in its bucket',
      CASE WHEN reserves THEN 'a reservation' ELSE 'the operation "' || op || '"' END, bucket.name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Only "limit" and "check" without reserving can; remove `leave`.';
  END IF;

  IF op IN ('limit', 'check', 'peek') THEN
    IF reserves THEN
      IF kind = 'sliding_window' THEN
        RAISE EXCEPTION 'reserve_unsupported: the sliding window "%" cannot reserve', bucket.name
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a token bucket or a fixed window.';
      END IF;
    END IF;
    IF max_reserved < 0 THEN
      least_balance := - max_reserved;
    ELSIF reserves THEN
      least_balance := - rate_limit._most_debt(max_reserved, count);
    END IF;
    slack := tolerance + 1e-14 * greatest(- least_balance, 0);
    IF count > capacity - least_balance + slack THEN
      RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
        count, bucket.name,
        (capacity - least_balance) || CASE WHEN least_balance > 0 THEN ' and leaves ' || least_balance ELSE '' END
        USING ERRCODE = 'invalid_parameter_value', HINT = CASE
          WHEN least_balance > 0 THEN 'Lower the count, or leave less.'
          WHEN kind = 'sliding_window' THEN 'Lower the count, or raise the rate.'
          WHEN reserves THEN 'Lower the count, or raise max_reserved.'
          WHEN capacity = 0 THEN 'Reserve the tokens (reserve => true), or raise the capacity.'
          ELSE 'Lower the count, or raise the capacity.'
        END;
    END IF;
    is_allowed := remaining >= least_balance - slack;
    IF NOT is_allowed OR remaining < - tolerance THEN
      untaken := rate_limit._take_from(kind, bucket_after, now, rate, period, capacity, phase, resolution, 0);
      balance := untaken.remaining; -- Exact even if the count is huge.
      -- The wait starts at `at`, although the balance does not grow before `now`.
      wait := now - at + least(rate_limit._wait(
        kind,
        untaken.after,
        CASE WHEN is_allowed THEN - remaining ELSE least_balance - remaining END,
        tolerance, balance, now, rate, period, phase, resolution), 1e18)::bigint;
    END IF;
  END IF;

  IF kind = 'gate' THEN -- It has no tokens.
    balance := 0;
    remaining := 0;
  ELSIF NOT is_allowed THEN
    remaining := balance;
  ELSIF abs(remaining) <= tolerance THEN
    remaining := 0;
  END IF;
  IF op = 'charge' AND remaining < -1e13 THEN
    RAISE EXCEPTION 'invalid_count: the count % for the limit "%" would make a debt of more than 1e13 tokens', count, bucket.name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower the count, or reset the key.';
  ELSIF op = 'charge' OR (op = 'limit' AND is_allowed) THEN
    bucket_after := taken.after;
    is_changed := op = 'charge' OR count > 0; -- A call that takes nothing writes nothing.
  ELSIF op = 'reset' THEN
    bucket_after.ts := NULL;
    bucket_after.detail := NULL; -- Later calls of the same batch find no block.
  ELSIF op = 'peek' THEN
    wait := now - at + CASE kind
      WHEN 'fixed_window' THEN rate_limit._window_start(now, phase, period) + period - now
      ELSE greatest((taken.after).idle_at - now, 0)
    END;
  ELSIF op <> 'credit' AND op <> 'check' AND is_allowed THEN
    RAISE EXCEPTION 'unknown operation "%"', op
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use limit, check, peek, credit, charge or reset.';
  END IF;
END
$function$;
