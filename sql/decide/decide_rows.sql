-- Decides calls on rows in memory and reads no table. Calls are decided in the order given; each sees what earlier calls took.
-- limit_*, item_*, call_* and the results are those of _decide.
--
--   buckets        one row for each bucket, without `ts` if the bucket has no row; as a result, the rows after the calls
--   parts          the number of rows of each bucket, if its row is one of several; NULL: each row is a whole bucket. A part
--                  that has the whole headroom proves that the bucket has it
--   clock          the time for calls without an element in call_ats
--   changed        the buckets to write; a row without `ts` is to be deleted
--   call_admitted  a call with 0 here was denied before, and stays denied
CREATE OR REPLACE FUNCTION rate_limit._decide_rows(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  INOUT buckets rate_limit.rate_limits[], parts integer[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], call_ops text[],
  call_reserves boolean[], call_sizes integer[], call_times integer[], call_ats bigint[], call_leases bigint[], clock bigint,
  OUT changed boolean[],
  INOUT call_admitted integer[], INOUT call_waits bigint[], INOUT item_refused boolean[], INOUT item_values double precision[]
) LANGUAGE plpgsql STABLE
AS $function$
#variable_conflict use_variable
DECLARE
  items CONSTANT integer := coalesce(cardinality(item_buckets), cardinality(buckets));
  calls CONSTANT integer := coalesce(cardinality(call_sizes), items);
  first_item integer;
  last_item integer := 0;
  op text;
  times integer; -- how many times the call is still to be decided
  at_once integer; -- how many of these to decide in one step
  refused boolean;
  b integer;
  l integer;
  p integer;
  decided record;
  after rate_limit.rate_limits[]; -- the rows of the items, if the call is allowed
  before double precision[]; -- the balances of the items before the call
BEGIN
  FOR nth IN 1 .. calls LOOP
    first_item := last_item + 1;
    last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 0); -- a job that only takes slots has no items
    CONTINUE WHEN call_admitted[nth] = 0;
    op := CASE WHEN call_ops IS NULL THEN 'limit' ELSE coalesce(call_ops[nth], '') END;
    times := CASE WHEN call_times IS NULL THEN 1 ELSE call_times[nth] END;
    IF NOT coalesce(
      times = 1 OR (times > 1 AND op = 'limit' AND first_item = last_item AND call_reserves[nth] IS NOT TRUE), false)
    THEN
      RAISE EXCEPTION 'call % cannot be made % times at once', nth, coalesce(times::text, 'NULL')
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Only "limit" of one item, without reserving, can.';
    END IF;
    call_admitted[nth] := 0;
    -- A call that is made several times is first checked, to get the balance. Then one step takes as many as the balance
    -- covers.
    at_once := CASE WHEN times > 1 THEN 0 ELSE 1 END;
    LOOP
      refused := false;
      call_waits[nth] := NULL;
      FOR item IN first_item .. last_item LOOP
        b := CASE WHEN item_buckets IS NULL THEN item ELSE item_buckets[item] END;
        l := CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[item] END;
        p := coalesce(parts[b], 1);
        IF limit_kinds[l] = 'concurrency' THEN
          decided := rate_limit._concurrency_item(
            buckets[b],
            op,
            CASE WHEN item_counts IS NULL THEN 1 ELSE item_counts[item] END,
            coalesce(call_reserves[nth], false),
            coalesce(call_ats[nth], clock),
            limit_periods[l],
            limit_rates[l],
            call_leases[nth]);
        ELSE
          decided := rate_limit._item(
            buckets[b],
            CASE WHEN at_once = 0 THEN 'check' ELSE op END,
            CASE WHEN item_counts IS NULL THEN 1 ELSE item_counts[item] END * greatest(at_once, 1),
            coalesce(call_reserves[nth], false),
            coalesce(call_ats[nth], clock),
            limit_kinds[l],
            limit_rates[l] / p,
            limit_periods[l],
            coalesce(limit_capacities[l], limit_rates[l]) / p,
            limit_max_reserved[l] / CASE WHEN limit_max_reserved[l] < 0 THEN 1 ELSE p END,
            rate_limit._grid(limit_kinds[l], limit_starts[l], limit_periods[l], (buckets[b]).name, (buckets[b]).key),
            coalesce(limit_resolutions[l], 1));
        END IF;
        -- An allowed call returns its longest wait, a denied one the longest wait of its denied items.
        IF decided.is_allowed = NOT refused THEN
          call_waits[nth] := greatest(call_waits[nth], decided.wait);
        ELSIF NOT decided.is_allowed THEN
          call_waits[nth] := decided.wait;
        END IF;
        refused := refused OR NOT decided.is_allowed;
        item_refused[item] := NOT decided.is_allowed;
        item_values[item] := decided.remaining;
        before[item] := decided.balance;
        after[item] := CASE WHEN decided.is_changed THEN decided.bucket_after END;
      END LOOP;
      IF refused AND op <> 'release' THEN -- a release gives back the slots that are still held
        FOR item IN first_item .. last_item LOOP
          item_values[item] := before[item];
        END LOOP;
        EXIT;
      END IF;
      IF at_once = 0 THEN
        l := CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[first_item] END;
        at_once := CASE
          WHEN item_counts[first_item] = 0 THEN times
          ELSE least(
            greatest(
              floor((before[first_item] + least(limit_max_reserved[l], 0)) / coalesce(item_counts[first_item], 1)), 1),
            times)
        END;
        CONTINUE;
      END IF;
      FOR item IN first_item .. last_item LOOP
        IF (after[item]).name IS NOT NULL THEN
          b := CASE WHEN item_buckets IS NULL THEN item ELSE item_buckets[item] END;
          buckets[b] := after[item];
          changed[b] := true;
        END IF;
      END LOOP;
      call_admitted[nth] := call_admitted[nth] + at_once;
      times := times - at_once;
      EXIT WHEN times = 0;
      at_once := 1;
    END LOOP;
  END LOOP;
  IF last_item <> items THEN
    RAISE EXCEPTION 'the calls have % items, and % are listed', last_item, items
      USING ERRCODE = 'invalid_parameter_value', HINT = 'The call_sizes add up to the items.';
  END IF;
END
$function$;
