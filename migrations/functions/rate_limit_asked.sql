-- rate_limit_asked(text[], double precision[], bigint[], double precision[], double precision[], integer[], text[], text[], integer[], double precision[], boolean[], integer[], integer[], text, text)
-- SHA-256: 65a19efc960b930d842d7de7eeb365eee3f0a1c90730fb67129c83f7b325471e

-- The items of a batch with their limits: one row a bucket, in the global order of rows.
-- `is_plain`: the UPDATE may decide it; it is a valid limit of a token bucket, and comes before (before_name, before_key).
CREATE OR REPLACE FUNCTION public.rate_limit_asked(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_shards integer[],
  bucket_names text[],
  bucket_keys text[],
  item_limits integer[],
  item_counts double precision[],
  call_reserves boolean[],
  call_times integer[],
  chosen_shards integer[],
  before_name text,
  before_key text
)
RETURNS TABLE (
  nth integer,
  name text,
  key text,
  shards integer,
  shard integer,
  times integer,
  amount double precision,
  rate double precision,
  period double precision,
  capacity double precision,
  reserves boolean,
  tolerance double precision,
  needed double precision,
  is_plain boolean
)
LANGUAGE sql STABLE
AS $function$
  SELECT
    a.nth,
    a.name,
    a.key,
    a.shards,
    a.shard,
    a.times,
    a.amount,
    a.rate,
    a.period,
    a.capacity,
    a.reserves,
    a.tolerance,
    a.needed,
    kind = 'token_bucket' AND times >= 1
    AND (before_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (before_name, before_key)) AND
    rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
    AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
    AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
    AS is_plain
  FROM (
    SELECT
      l.*,
      -- Not a constant, which would be looked up on its own.
      CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
      1e-9 + 1e-14 * l.capacity AS tolerance,
      CASE
        WHEN l.reserves
        THEN
          -- As far down as it may go, and as the time until it is full again can be told.
          greatest(
            amount - (1e-9 + 1e-14 * capacity) - max_reserved * (1 + 1e-14),
            capacity + amount - 1e18 * rate / period)
        ELSE l.amount - (1e-9 + 1e-14 * l.capacity)
      END AS needed
    FROM (
      SELECT
        i.nth::integer AS nth,
        i.name,
        i.key,
        limit_kinds[i.nth_limit] AS kind,
        limit_rates[i.nth_limit] / i.shards AS rate,
        limit_periods[i.nth_limit]::double precision AS period,
        coalesce(limit_capacities[i.nth_limit], limit_rates[i.nth_limit]) / i.shards AS capacity,
        i.shards,
        i.times,
        i.count * i.times AS amount,
        i.reserves,
        CASE WHEN i.reserves THEN limit_max_reserved[i.nth_limit] END AS max_reserved
      FROM (
        SELECT
          u.nth,
          u.name,
          u.key,
          n.nth_limit,
          CASE WHEN limit_shards IS NULL THEN 1 ELSE nullif(coalesce(limit_shards[n.nth_limit], 1), 0) END AS shards,
          CASE WHEN item_counts IS NULL THEN 1 ELSE u.count END AS count,
          CASE WHEN call_times IS NULL THEN 1 ELSE u.times END AS times,
          coalesce(u.reserves, false) AS reserves
        -- The sub-select hides from the planner how many there are, or it would make a new plan for each few.
        FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
          WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
        CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
        OFFSET 0 -- Nothing is to be worked out twice.
      ) AS i
      OFFSET 0
    ) AS l
  ) AS a
  ORDER BY a.name COLLATE "C", a.key COLLATE "C"
$function$;
COMMENT ON FUNCTION public.rate_limit_asked IS
  'Returns the calls of a batch with their limits, in the order in which rows are locked; inlined.';
