-- Takes the tokens of `limit` calls on a few buckets, each used by one item, if every bucket covers its count. It is a faster
-- path than rate_limit_decide_each. Returns the balances for the items, or NULL if rate_limit_decide_each has to decide. The
-- buckets are listed in the global order. Nothing is written to a bucket from which no tokens are taken.
CREATE OR REPLACE FUNCTION public.rate_limit_take_few(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_resolutions integer[], bucket_names text[], bucket_keys text[], item_buckets integer[],
  item_limits integer[], item_counts double precision[]
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  buckets CONSTANT integer := cardinality(bucket_names);
  items integer[]; -- the item of each bucket
  l integer;
  phase bigint;
  capacity double precision;
  now bigint;
  waited bigint;
  bucket public.rate_limits;
  taken record;
  before public.rate_limits[];
  after public.rate_limits[];
  balances double precision[];
BEGIN
  FOR item IN 1 .. buckets LOOP
    items[coalesce(item_buckets[item], item)] := item;
  END LOOP;
  IF cardinality(items) <> buckets OR array_position(items, NULL) IS NOT NULL THEN
    RETURN NULL; -- Two items use the same bucket.
  END IF;
  now := public.rate_limit_clock();
  FOR b IN 1 .. buckets LOOP
    l := coalesce(item_limits[items[b]], 1);
    capacity := coalesce(limit_capacities[l], limit_rates[l]);
    phase := public.rate_limit_grid(limit_kinds[l], limit_starts[l], limit_periods[l], bucket_names[b], bucket_keys[b]);
    SELECT r.* INTO bucket FROM public.rate_limits AS r WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0;
    IF NOT FOUND AND limit_kinds[l] = 'token_bucket' AND item_counts[items[b]] = 0 THEN -- Like a gate that is not blocked.
      bucket.shards := 1;
      bucket.value := capacity;
      bucket.ts := now;
    END IF;
    IF (bucket.shards = 1 AND bucket.ts <= now AND limit_rates[l] BETWEEN 1e-100 AND 1e100
      AND limit_periods[l] BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
      AND (item_counts[items[b]] = 0 OR coalesce(item_counts[items[b]], 1) BETWEEN 1e-100 AND capacity)
      AND public.rate_limit_fits(
        limit_kinds[l], bucket.earlier_counts, limit_periods[l], phase, coalesce(limit_resolutions[l], 1))) IS NOT TRUE
    THEN
      RETURN NULL;
    END IF;
    taken := public.rate_limit_take_from(
      limit_kinds[l], bucket, now, limit_rates[l], limit_periods[l], capacity, phase, coalesce(limit_resolutions[l], 1),
      coalesce(item_counts[items[b]], 1));
    IF (taken.remaining >= 0) IS NOT TRUE THEN
      RETURN NULL;
    END IF;
    IF coalesce(item_counts[items[b]], 1) > 0 THEN
      before[b] := bucket;
      after[b] := taken.after;
    END IF;
    balances[items[b]] := taken.remaining;
  END LOOP;

  IF public.rate_limit_clock() - now > public.rate_limit_late_after(buckets) / 2 THEN
    RETURN NULL; -- The first decision of a session is slow.
  END IF;
  FOR b IN 1 .. buckets LOOP
    CONTINUE WHEN (after[b]).ts IS NULL;
    IF NOT public.rate_limit_write(before[b], after[b], true) THEN
      FOR written IN 1 .. b - 1 LOOP
        CONTINUE WHEN (after[written]).ts IS NULL;
        PERFORM public.rate_limit_write(before[written], before[written], false);
      END LOOP;
      RETURN NULL;
    END IF;
  END LOOP;

  -- If the writes were slow, another transaction may have locked a row without changing it. A decision as of a time before that
  -- wait would count the refill since then twice, so it is made again. All rows are locked now.
  waited := public.rate_limit_clock() - now;
  FOR b IN 1 .. CASE WHEN waited > public.rate_limit_late_after(buckets) THEN buckets ELSE 0 END LOOP
    CONTINUE WHEN (after[b]).ts IS NULL;
    l := coalesce(item_limits[items[b]], 1);
    balances[items[b]] := public.rate_limit_retake(
      bucket_names[b], bucket_keys[b], 0, limit_kinds[l], limit_rates[l], limit_periods[l],
      coalesce(limit_capacities[l], limit_rates[l]),
      public.rate_limit_grid(limit_kinds[l], limit_starts[l], limit_periods[l], bucket_names[b], bucket_keys[b]),
      coalesce(limit_resolutions[l], 1), coalesce(item_counts[items[b]], 1), coalesce(item_counts[items[b]], 1), now + waited);
  END LOOP;
  RETURN balances;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_few IS
  'Takes the tokens of calls from a few buckets, if every bucket covers its count.';
