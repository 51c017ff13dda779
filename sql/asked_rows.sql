-- The buckets of a batch, with their rows, in the order given: whether a row covers what is asked of it in all, and the row after
-- that is taken at `now`. `bucket` has no `ts` where there is no row.
CREATE OR REPLACE FUNCTION public.rate_limit_asked_rows(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  bucket_names text[],
  bucket_keys text[],
  bucket_limits integer[],
  bucket_amounts double precision[],
  now bigint
)
RETURNS TABLE (nth integer, bucket public.rate_limits, is_ample boolean, after public.rate_limits, remaining double precision)
LANGUAGE sql STABLE
AS $function$
  SELECT
    b.nth,
    b.bucket,
    b.is_ample,
    (b.taken).after,
    CASE WHEN abs((b.taken).remaining) <= 1e-9 + 1e-14 * b.capacity THEN 0 ELSE (b.taken).remaining END
  FROM (
    SELECT
      a.*,
      coalesce(
        (a.taken).remaining >= - (1e-9 + 1e-14 * a.capacity) AND (a.bucket).shards = 1
          AND ((a.bucket).ts IS NULL OR public.rate_limit_fits(a.kind, (a.bucket).earlier_counts, a.period, a.phase, a.resolution))
          AND a.rate BETWEEN 1e-100 AND 1e100 AND a.period BETWEEN 1 AND 3155760000000000 AND a.capacity BETWEEN 0 AND 1e100
          AND a.resolution BETWEEN 1 AND 1000 AND (a.amount = 0 OR a.amount BETWEEN 1e-100 AND a.capacity),
        false) AS is_ample
    FROM (
      SELECT
        c.*,
        public.rate_limit_take_from(
          c.kind, c.adopted, c.at, c.rate, c.period, c.capacity, c.phase, c.resolution, c.amount) AS taken
      FROM (
        SELECT
          i.*,
          greatest(now, (i.bucket).ts) AS at,
          CASE WHEN (i.bucket).ts IS NOT NULL THEN i.bucket
            ELSE public.rate_limit_adopt(i.kind, i.bucket, now, i.rate, i.period, i.capacity, i.phase, i.resolution) END AS adopted
        FROM (
          SELECT
            u.nth::integer AS nth,
            u.amount,
            limit_kinds[n.nth_limit] AS kind,
            limit_rates[n.nth_limit] AS rate,
            limit_periods[n.nth_limit] AS period,
            coalesce(limit_capacities[n.nth_limit], limit_rates[n.nth_limit]) AS capacity,
            public.rate_limit_grid(
              limit_kinds[n.nth_limit], limit_starts[n.nth_limit], limit_periods[n.nth_limit], u.name, u.key) AS phase,
            coalesce(limit_resolutions[n.nth_limit], 1) AS resolution,
            coalesce(r.bucket, CAST(ROW(u.name, u.key, 0, 1, NULL, NULL, NULL, NULL) AS public.rate_limits)) AS bucket
          -- The sub-select hides from the planner how many there are, or it would make a new plan for each few.
          FROM unnest((SELECT bucket_names), bucket_keys, bucket_limits, bucket_amounts)
            WITH ORDINALITY AS u (name, key, nth_limit, amount, nth)
          CROSS JOIN LATERAL (SELECT coalesce(u.nth_limit, 1) AS nth_limit) AS n
          LEFT JOIN LATERAL (
            SELECT t AS bucket
            FROM public.rate_limits AS t
            WHERE t.name = u.name AND t.key = u.key AND t.shard = 0
            LIMIT 1
          ) AS r ON true
          OFFSET 0 -- Nothing is computed twice.
        ) AS i
        OFFSET 0
      ) AS c
      OFFSET 0
    ) AS a
    OFFSET 0
  ) AS b
$function$;
COMMENT ON FUNCTION public.rate_limit_asked_rows IS 'Returns the rows of a batch before and after; inlined.';
