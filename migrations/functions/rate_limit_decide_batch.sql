-- rate_limit_decide_batch(text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], integer[], text[], text[], integer[], double precision[], integer[], integer[], double precision[], text[], boolean[], integer[], integer[], bigint[], boolean)
-- SHA-256: 22d1b29b5afebae2994530ae9d24556cc7c32ee06584f2fae485d5d530159aeb

-- The one place where calls on several buckets are decided: standalone, in a caller's transaction, in batches, replayed, from psql.
--
-- A call is an all-or-nothing group of items; an item asks one limit for a count of tokens from one bucket (name, key).
-- Calls are decided in the order given; each sees what the calls before it took.
--
--   limit_*         one element a limit; NULL stands for an option that is not set, and for a whole array of them
--   bucket_*        one element a bucket, in the order of (name, key) in bytes, no bucket twice: its limit (NULL: the first), and
--                   what the calls ask of it in all. bucket_amounts is NULL if a call is no plain `limit`
--   item_*          one element an item: the index of its bucket and of its limit, and the count. NULL: the i-th item asks the
--                   i-th bucket, the first limit, for 1
--   call_ops        limit | check | credit | charge | reset; NULL: limit
--   call_reserves   whether a call may take tokens before they have flowed in; NULL: none may
--   call_sizes      the number of items of each call; NULL: one each. A call names a bucket once
--   call_times      how often a call is made, one time right after the other; NULL: once. Only for `limit` of one item, without
--                   a reservation
--   call_ats        the clock for each call, in microseconds since the Unix epoch (1800 to 2199); NULL: the database's
--   may_wait        false: the caller has locked a row of a sharded bucket, so that no other one of it may be waited for
--
-- Results: bucket_balances, if every call was allowed and none waits: what is left in each bucket after all of them. Otherwise
-- call_admitted: how many times each call was allowed. call_waits: in microseconds, NULL where there is none; for an allowed call
-- that of a reservation, for a refused one the time after which it would be allowed. item_refused. item_values: the balances after
-- the call; an estimate for a sharded bucket of which only two rows were read.
--
-- Set-based statements are for PostgreSQL: YugabyteDB, which is quick only with equality on the whole primary key, decides row by
-- row.
CREATE OR REPLACE FUNCTION public.rate_limit_decide_batch(
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
  bucket_limits integer[],
  bucket_amounts double precision[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  call_ops text[],
  call_reserves boolean[],
  call_sizes integer[],
  call_times integer[],
  call_ats bigint[],
  may_wait boolean DEFAULT true,
  OUT bucket_balances double precision[],
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
  taken record;
  decided record;
  rows_before public.rate_limits[];
BEGIN
  IF bucket_amounts IS NOT NULL AND limit_shards IS NULL AND version() NOT LIKE '%-YB-%' THEN
    taken := public.rate_limit_take_ample(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
      bucket_limits, bucket_amounts);
    IF taken.is_done THEN
      bucket_balances := taken.balances;
      RETURN;
    END IF;
    rows_before := taken.rows_before;
  END IF;
  PERFORM public.rate_limit_guard(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_resolutions, limit_shards, bucket_names,
    bucket_keys, item_buckets, item_limits, item_counts, call_ops, call_ats);
  decided := public.rate_limit_decide_each(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions, limit_shards,
    bucket_names, bucket_keys, item_buckets, item_limits, item_counts, call_ops, call_reserves, call_sizes, call_times, call_ats,
    may_wait, rows_before);
  call_admitted := decided.call_admitted;
  call_waits := decided.call_waits;
  item_refused := decided.item_refused;
  item_values := decided.item_values;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_decide_batch IS 'Decides a batch of calls on any number of buckets; called by the client.';
