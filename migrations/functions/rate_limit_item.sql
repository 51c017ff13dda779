-- rate_limit_item(rate_limits, text, double precision, boolean, bigint, text, double precision, bigint, double precision, double precision, bigint, integer)
-- SHA-256: 5cb81879297961042c0a3a60dd4cfaf665937b13246c1f4375e6547c443538d5

-- Decides one item of a call on one row in memory, and reads no table. It returns whether the item is allowed at the time
-- `at`, and the row after it. A row without `ts` means that the bucket has no row.
--
--   op             limit | check | peek | credit | charge | reset
--   max_reserved   how far a reservation may take the balance below 0; NULL: no bound. Negative: the headroom, which a call
--                  without a reservation must leave in the bucket
--   bucket_after   the row after the item, if it is allowed; without `ts` if the row is to be deleted
--   is_changed     whether bucket_after differs from `bucket`
--   wait           in microseconds: until the tokens of a reservation have arrived, or until a denied item would be allowed. A
--                  peek returns the time until the end of the window or, for other kinds, until the bucket is full
--   balance        before the item
--   remaining      after the item; for a denial, the balance
CREATE OR REPLACE FUNCTION public.rate_limit_item(
  bucket public.rate_limits, op text, count double precision, reserves boolean, at bigint, kind text, rate double precision,
  period bigint, capacity double precision, max_reserved double precision, phase bigint, resolution integer,
  OUT bucket_after public.rate_limits, OUT is_allowed boolean, OUT is_changed boolean, OUT wait bigint,
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
  least_balance double precision := 0; -- the lowest balance that the item may leave; NULL: no bound
  slack double precision; -- the tolerance at that balance
BEGIN
  is_changed := false;
  bucket_after := public.rate_limit_adopt(kind, bucket, now, rate, period, capacity, phase, resolution);
  IF op = 'credit' OR op = 'reset' THEN
    is_changed := bucket.ts IS NOT NULL;
    IF op = 'reset' AND is_changed THEN
      bucket_after.ts := NULL;
      bucket_after := public.rate_limit_adopt(kind, bucket_after, now, rate, period, capacity, phase, resolution);
    ELSIF is_changed THEN
      bucket_after := (public.rate_limit_take_from(
        kind, bucket_after, now, rate, period, capacity, phase, resolution, 0)).after;
      bucket_after := public.rate_limit_credited(kind, bucket_after, count, capacity);
      bucket_after := (public.rate_limit_take_from(
        kind, bucket_after, now, rate, period, capacity, phase, resolution, 0)).after;
    END IF;
    count := 0;
  END IF;
  taken := public.rate_limit_take_from(kind, bucket_after, now, rate, period, capacity, phase, resolution, count);
  balance := taken.remaining + count;
  IF balance IS NULL THEN
    RAISE EXCEPTION 'the limit "%" has the unknown kind "%"', bucket.name, kind
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate.';
  END IF;
  tolerance := 1e-9 + 1e-14 * greatest(capacity, abs(balance));
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
    IF reserves OR max_reserved < 0 THEN
      least_balance := - max_reserved;
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
    is_allowed := least_balance IS NULL OR remaining >= least_balance - slack;
    IF NOT is_allowed OR remaining < - tolerance THEN
      untaken := public.rate_limit_take_from(kind, bucket_after, now, rate, period, capacity, phase, resolution, 0);
      balance := untaken.remaining; -- Exact even if the count is huge.
      -- The wait starts at `at`, although the balance does not grow before `now`.
      wait := now - at + least(public.rate_limit_wait(
        kind,
        untaken.after,
        CASE WHEN is_allowed THEN - remaining ELSE least_balance - remaining END,
        tolerance, balance, now, rate, period, phase, resolution), 1e18)::bigint;
    END IF;
  END IF;

  IF NOT is_allowed THEN
    remaining := balance;
  ELSIF abs(remaining) <= tolerance THEN
    remaining := 0;
  END IF;
  IF op = 'charge' OR (op = 'limit' AND is_allowed) THEN
    bucket_after := taken.after;
    is_changed := op = 'charge' OR count > 0; -- A call that takes nothing writes nothing.
  ELSIF op = 'reset' THEN
    bucket_after.ts := NULL;
  ELSIF op = 'peek' THEN
    wait := now - at + public.rate_limit_peek_wait(kind, taken.after, now, period, phase);
  ELSIF op <> 'credit' AND op <> 'check' AND is_allowed THEN
    RAISE EXCEPTION 'unknown operation "%"', op
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use limit, check, peek, credit, charge or reset.';
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_item IS 'Decides one item of a call on one row in memory.';
