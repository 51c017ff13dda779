-- Decides calls like rate_limit_decide_batch, with the buckets in any order and without the sums of what is asked of them; for
-- SQL, and for clients of earlier releases. Arguments and results are as there, but item_values is always set, and
--
--   holds_rows     the caller has locked a row of a sharded bucket already, so that no other one of it may be waited for
--   call_admitted  NULL: all of them. item_refused: NULL: none
CREATE OR REPLACE FUNCTION public.rate_limit_decide(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  limit_shards integer[],
  bucket_names text[],
  bucket_keys text[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  call_ops text[],
  call_reserves boolean[],
  call_sizes integer[],
  call_times integer[],
  call_ats bigint[],
  holds_rows boolean DEFAULT false,
  OUT call_admitted integer[],
  OUT call_waits bigint[],
  OUT item_refused boolean[],
  OUT item_values double precision[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  buckets CONSTANT integer := coalesce(cardinality(bucket_names), 0);
  items CONSTANT integer := coalesce(cardinality(item_buckets), buckets);
  calls CONSTANT integer := coalesce(cardinality(call_sizes), items);
  sorted integer[];
  ranks integer[];
  amounts double precision[]; -- what is asked of each bucket
  limits integer[]; -- by which limit
  b integer;
  decided record;
BEGIN
  IF NOT coalesce(
    cardinality(bucket_keys) = buckets AND coalesce(cardinality(item_limits), items) = items
      AND coalesce(cardinality(item_counts), items) = items AND coalesce(cardinality(call_ops), calls) = calls
      AND coalesce(cardinality(call_times), calls) = calls,
    false)
  THEN
    RAISE EXCEPTION 'the arrays for % buckets, % items and % calls differ in length', buckets, items, calls
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element each, or NULL for the whole array.';
  END IF;
  -- Rows are taken in one order.
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
  -- Plain calls, each on buckets of its own, may be taken in one statement.
  IF call_ops IS NULL AND call_reserves IS NULL AND call_ats IS NULL AND limit_shards IS NULL
    AND (item_buckets IS NULL OR items = buckets)
  THEN
    FOR item IN 1 .. items LOOP
      b := coalesce(item_buckets[item], item);
      IF amounts[b] IS NOT NULL THEN
        amounts := NULL;
        EXIT;
      END IF;
      amounts[b] := coalesce(item_counts[item], CASE WHEN item_counts IS NULL THEN 1 END)
        * CASE WHEN call_times IS NULL THEN 1 WHEN call_sizes IS NULL AND call_times[item] >= 1 THEN call_times[item] END;
      limits[b] := CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[item] END;
    END LOOP;
  END IF;
  decided := public.rate_limit_decide_batch(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions, limit_shards,
    bucket_names, bucket_keys, limits, amounts, item_buckets, item_limits, item_counts, call_ops, call_reserves, call_sizes,
    call_times, call_ats, NOT holds_rows);
  call_admitted := decided.call_admitted;
  call_waits := decided.call_waits;
  item_refused := decided.item_refused;
  item_values := decided.item_values;
  IF decided.bucket_balances IS NOT NULL THEN
    FOR item IN 1 .. items LOOP
      item_values[item] := (decided.bucket_balances)[coalesce(item_buckets[item], item)];
    END LOOP;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_decide IS 'Decides a batch of calls on any number of buckets; called by the client.';
