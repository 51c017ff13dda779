-- Decides calls as rate_limit_decide does, if some of them take slots of concurrency limits, release or renew them.
--
--   limit_*       of a concurrency limit: the rate is the number of slots, and the period the length of a lease
--   bucket_*      in the order of the bytes of name and key
--   call_ops      also renew and release. If the lease has ended, a renewal is denied, and the item of a release is refused
--   call_leases   the lease of each call, a number that no other lease of the bucket has; NULL: the call needs none
CREATE OR REPLACE FUNCTION public.rate_limit_decide_leases(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[], limit_shards integer[],
  bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[], item_counts double precision[],
  call_ops text[], call_reserves boolean[], call_sizes integer[], call_times integer[], call_ats bigint[], call_leases bigint[],
  OUT call_admitted integer[], OUT call_waits bigint[], OUT item_refused boolean[], OUT item_values double precision[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  decided record;
BEGIN
  IF NOT coalesce(
    cardinality(bucket_keys) = cardinality(bucket_names) AND cardinality(item_limits) = cardinality(item_buckets)
      AND cardinality(item_counts) = cardinality(item_buckets) AND cardinality(call_ops) = cardinality(call_sizes)
      AND cardinality(call_leases) = cardinality(call_sizes),
    false)
  THEN
    RAISE EXCEPTION 'the arrays for buckets, items or calls differ in length'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element each.';
  END IF;
  FOR b IN 2 .. cardinality(bucket_names) LOOP
    IF (bucket_names[b] COLLATE "C", bucket_keys[b] COLLATE "C") <= (bucket_names[b - 1], bucket_keys[b - 1]) THEN
      RAISE EXCEPTION 'the buckets of the limits "%" and "%" are not in order', bucket_names[b - 1], bucket_names[b]
        USING ERRCODE = 'invalid_parameter_value', HINT = 'List each bucket once, by the bytes of name and key.';
    END IF;
  END LOOP;
  PERFORM public.rate_limit_guard(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_resolutions, limit_shards, bucket_names,
    bucket_keys, item_buckets, item_limits, item_counts, call_ops, call_ats);
  decided := public.rate_limit_decide_each(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions, limit_shards,
    bucket_names, bucket_keys, item_buckets, item_limits, item_counts, call_ops, call_reserves, call_sizes, call_times, call_ats,
    call_leases, true);
  call_admitted := decided.call_admitted;
  call_waits := decided.call_waits;
  item_refused := decided.item_refused;
  item_values := decided.item_values;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_decide_leases IS
  'Decides a batch of calls, some of which acquire, release or renew slots; called by the client.';
