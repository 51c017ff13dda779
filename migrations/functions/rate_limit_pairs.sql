-- rate_limit_pairs(rate_limits[], rate_limits[])
-- SHA-256: 7f9db0083cb2a321ff85006719393b71f9b457e619f9d116b573b4c14a957ab5

-- The rows of a batch before and after, one a row, in the order given; inlined.
CREATE OR REPLACE FUNCTION public.rate_limit_pairs(before public.rate_limits[], after public.rate_limits[])
RETURNS TABLE (
  nth integer,
  name text,
  key text,
  value_before double precision,
  ts_before bigint,
  counts_before double precision[],
  value double precision,
  ts bigint,
  idle_at bigint,
  earlier_counts double precision[]
)
LANGUAGE sql STABLE
AS $function$
  SELECT u.nth::integer, u.name, u.key, u.value_before, u.ts_before, u.counts_before, u.value, u.ts, u.idle_at, u.earlier_counts
  -- The sub-select hides from the planner how many there are, or it would make a new plan for each few.
  FROM unnest((SELECT before), after) WITH ORDINALITY AS u (
    name, key, shard_before, shards_before, value_before, ts_before, idle_before, counts_before,
    name_after, key_after, shard, shards, value, ts, idle_at, earlier_counts, nth)
$function$;
COMMENT ON FUNCTION public.rate_limit_pairs IS 'Returns the rows of a batch before and after; inlined.';
