-- Decides calls one by one, on any number of buckets: every call that _decide_one and _decide_sums do not
-- decide.
--
-- A call is an all-or-nothing group of items. An item takes a count of tokens from one bucket (name, key) under one limit.
-- Calls are decided in the order given; each sees what earlier calls took.
--
--   limit_*         one element for each limit; NULL: the option is not set; a NULL array: it is not set for any limit. A
--                   negative max_reserved is a headroom: a call without a reservation is allowed only if at least so many
--                   tokens are left in the bucket after it
--   bucket_*        one element for each bucket, no bucket twice, in any order
--   item_*          one element for each item: the index of its bucket, the index of its limit, and the count. NULL: the i-th
--                   item uses the i-th bucket, the first limit, and the count 1
--   call_ops        limit | check | credit | charge | reset; NULL: limit
--   call_reserves   whether a call may take tokens before they have arrived; NULL: none may
--   call_sizes      the number of items of each call; NULL: one each. A call names a bucket once
--   call_times      how many times in a row each call is made; NULL: once. Only for `limit` of one item, without a reservation
--   call_ats        the clock for each call, in microseconds since the Unix epoch (1800 to 2199); NULL: the database's clock
--   call_leases     of calls on concurrency limits, which can also be `renew` and `release`: the lease of each call, a number
--                   that no other lease of the bucket has; NULL: the call needs none. The rate of such a limit is the number
--                   of slots, and its period the length of a lease. If the lease has ended, a renewal is denied, and the item
--                   of a release is refused
--   holds_rows      the caller may already have locked rows of these buckets: so this creates no bucket, and waits for no row.
--                   Where it would have to, it fails (40001)
--
-- Results:
--   call_admitted   how many times each call was allowed; NULL: all of them
--   call_waits      in microseconds, NULL if there is none. Allowed call: the wait of its reservation. Denied call: the time
--                   until it would be allowed
--   item_refused    whether each item was denied; NULL: none was
--   item_values     the balances after the call; an estimate for a sharded bucket of which only two rows were read
--   decided_at      the time as of which the calls were decided, from which their waits count; unless call_ats gives one
CREATE OR REPLACE FUNCTION rate_limit._decide(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[], limit_shards integer[],
  bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[], item_counts double precision[],
  call_ops text[], call_reserves boolean[], call_sizes integer[], call_times integer[], call_ats bigint[],
  call_leases bigint[] DEFAULT NULL, holds_rows boolean DEFAULT false,
  OUT call_admitted integer[], OUT call_waits bigint[], OUT item_refused boolean[], OUT item_values double precision[],
  OUT decided_at bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  buckets CONSTANT integer := coalesce(cardinality(bucket_names), 0);
  items CONSTANT integer := coalesce(cardinality(item_buckets), buckets);
  calls CONSTANT integer := coalesce(cardinality(call_sizes), items);
  sorted integer[];
  ranks integer[];
  b integer;
  l integer;
  capacity double precision;
  op text;
  last_item integer := 0;
  amounts double precision[]; -- the tokens that calls take from each bucket or leave in it; NULL: its whole balance is needed
  decided record;
BEGIN
  IF NOT coalesce(
    cardinality(bucket_keys) = buckets AND coalesce(cardinality(item_limits), items) = items
      AND coalesce(cardinality(item_counts), items) = items AND coalesce(cardinality(call_ops), calls) = calls
      AND coalesce(cardinality(call_times), calls) = calls AND coalesce(cardinality(call_leases), calls) = calls,
    false)
  THEN
    RAISE EXCEPTION 'the arrays for % buckets, % items and % calls differ in length', buckets, items, calls
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element each, or NULL for the whole array.';
  END IF;
  -- Rows are locked in one order.
  FOR b IN 2 .. buckets LOOP
    IF (bucket_names[b] COLLATE "C", bucket_keys[b] COLLATE "C") <= (bucket_names[b - 1], bucket_keys[b - 1]) THEN
      SELECT array_agg(u.nth ORDER BY u.name COLLATE "C", u.key COLLATE "C")
      INTO sorted
      FROM unnest(bucket_names, bucket_keys) WITH ORDINALITY AS u (name, key, nth);
      FOR place IN 1 .. buckets LOOP
        ranks[sorted[place]] := place;
      END LOOP;
      EXIT;
    END IF;
  END LOOP;
  IF sorted IS NOT NULL THEN
    bucket_names := ARRAY(SELECT bucket_names[u.nth] FROM unnest(sorted) WITH ORDINALITY AS u (nth, place) ORDER BY u.place);
    bucket_keys := ARRAY(SELECT bucket_keys[u.nth] FROM unnest(sorted) WITH ORDINALITY AS u (nth, place) ORDER BY u.place);
    item_buckets := ARRAY(SELECT ranks[coalesce(item_buckets[i], i)] FROM generate_series(1, items) AS i ORDER BY i);
    FOR b IN 2 .. buckets LOOP
      IF bucket_keys[b] = bucket_keys[b - 1] AND bucket_names[b] = bucket_names[b - 1] THEN
        RAISE EXCEPTION 'a bucket of the limit "%" is listed twice', bucket_names[b]
          USING ERRCODE = 'invalid_parameter_value', HINT = 'List a bucket once; several items may name it.';
      END IF;
    END LOOP;
  END IF;
  -- Nothing below may corrupt a row. The caller has to check with _validate which options apply to which kind.
  FOR l IN 1 .. coalesce(cardinality(limit_kinds), 0) LOOP
    IF NOT coalesce(
      rate_limit._in_range(limit_rates[l], limit_periods[l], coalesce(limit_capacities[l], limit_rates[l]))
        -- Negative: the headroom, which is at most the capacity.
        AND coalesce(limit_max_reserved[l] BETWEEN - coalesce(limit_capacities[l], limit_rates[l]) AND 1e13, true)
        AND coalesce(limit_resolutions[l], 1) BETWEEN 1 AND 1000 AND coalesce(limit_shards[l], 1) BETWEEN 1 AND 1000,
      false)
    THEN
      RAISE EXCEPTION 'limit % is not valid', l
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Call _validate.';
    END IF;
  END LOOP;
  IF array_position(bucket_names, NULL) IS NOT NULL OR array_position(bucket_keys, NULL) IS NOT NULL
    OR NOT coalesce(1 <= ALL (item_buckets) AND cardinality(bucket_names) >= ALL (item_buckets), item_buckets IS NULL)
    OR NOT coalesce(1 <= ALL (item_limits) AND cardinality(limit_kinds) >= ALL (item_limits), item_limits IS NULL)
    OR coalesce(cardinality(limit_kinds), 0) = 0
  THEN
    RAISE EXCEPTION 'an item names a limit or a bucket that is not listed or not valid'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call _validate; indices count from 1.';
  END IF;
  FOR item IN 1 .. coalesce(cardinality(item_counts), 0) LOOP
    l := coalesce(item_limits[item], 1);
    capacity := coalesce(limit_capacities[l], limit_rates[l]);
    IF NOT coalesce(item_counts[item] = 0 OR rate_limit._is_exact(item_counts[item], capacity), false) THEN
      RAISE EXCEPTION 'invalid_count: the count % for the limit "%" is not 0 or %', coalesce(item_counts[item]::text, 'NULL'),
        bucket_names[coalesce(item_buckets[item], item)], rate_limit._exact_values(item_counts[item], capacity)
        USING ERRCODE = 'invalid_parameter_value',
          HINT = format('Use 0, or %s.', rate_limit._exact_values(item_counts[item], capacity));
    END IF;
  END LOOP;
  -- A clock set by the caller could block a key for a century, or fill a bucket too early. The caller is the role of SET
  -- ROLE, or else the login role; within this function current_user is the owner.
  IF call_ats IS NOT NULL AND (call_ops <@ ARRAY['check', 'peek']) IS NOT TRUE -- they write nothing
    AND NOT pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user)::name, current_user, 'MEMBER')
  THEN
    RAISE EXCEPTION 'a clock was given, which only the owner of the functions may set'
      USING ERRCODE = 'insufficient_privilege', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
  -- If calls only take tokens from a sharded bucket, one row may be enough. A credit, a reset and a peek need all rows.
  IF limit_shards IS NOT NULL AND NOT holds_rows THEN
    FOR nth IN 1 .. calls LOOP
      op := coalesce(call_ops[nth], 'limit');
      FOR item IN last_item + 1 .. last_item + coalesce(call_sizes[nth], 1) LOOP
        b := coalesce(item_buckets[item], item);
        amounts[b] := coalesce(amounts[b], 0) + CASE
          WHEN op IN ('limit', 'charge') OR (op = 'check' AND coalesce(item_counts[item], 1) > 0)
          THEN coalesce(item_counts[item], 1) * coalesce(call_times[nth], 1)
            - least(limit_max_reserved[coalesce(item_limits[item], 1)], 0) -- the headroom
          ELSE 'NaN'
        END;
        last_item := item;
      END LOOP;
    END LOOP;
    amounts := array_replace(amounts, 'NaN', NULL);
  END IF;
  decided := rate_limit._decide_each(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions, limit_shards,
    bucket_names, bucket_keys, item_buckets, item_limits, item_counts, call_ops, call_reserves, call_sizes, call_times, call_ats,
    call_leases, holds_rows, amounts);
  call_admitted := decided.call_admitted;
  call_waits := decided.call_waits;
  item_refused := decided.item_refused;
  item_values := decided.item_values;
  decided_at := decided.decided_at;
  IF call_ops && ARRAY['release', 'reset'] AND 'concurrency' = ANY (limit_kinds) THEN
    PERFORM rate_limit._slots_freed(limit_kinds, bucket_names, bucket_keys, item_buckets, item_limits, item_values);
  END IF;
END
$function$;
