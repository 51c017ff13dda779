-- Decides calls on the buckets in which starts of jobs are counted. Such a bucket has the key of the bucket that the job
-- reserved from, and its name with '/started' added. Its capacity is at least the count of one job and the grant of one window:
-- otherwise some jobs could never start on time.
--
--   item_names, item_keys, item_counts  one element for each item: the limit and key that the job reserved from, and its count
--   item_limits        the index of the item's limit in limit_*
--   item_amounts       the tokens that the call takes; NULL: the counts
--   item_max_reserved  how many tokens the bucket may owe after the item; NULL: no bound
--   call_*             as for _decide; call_sizes may not be NULL
--   results            as of _decide
CREATE OR REPLACE FUNCTION rate_limit._decide_started(
  item_names text[], item_keys text[], item_counts double precision[], item_limits integer[], item_amounts double precision[],
  item_max_reserved double precision[], call_ops text[], call_reserves boolean[], call_sizes integer[], call_times integer[],
  call_ats bigint[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], OUT call_admitted integer[], OUT call_waits bigint[],
  OUT item_refused boolean[], OUT item_values double precision[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  items CONSTANT integer := cardinality(item_names);
BEGIN
  SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values
  INTO call_admitted, call_waits, item_refused, item_values
  FROM (
    SELECT
      array_agg(i.kind ORDER BY i.nth) AS kinds,
      array_agg(limit_rates[i.nth_limit] ORDER BY i.nth) AS rates,
      array_agg(limit_periods[i.nth_limit] ORDER BY i.nth) AS periods,
      array_agg(
        greatest(
          coalesce(limit_capacities[i.nth_limit], limit_rates[i.nth_limit]), i.count,
          CASE WHEN i.kind = 'fixed_window' OR i.kind LIKE 'calendar_window %' THEN limit_rates[i.nth_limit] END)
        ORDER BY i.nth) AS capacities,
      array_agg(
        -- Without a start, the windows are those of the bucket that the job reserved from, which has another name.
        CASE
          WHEN i.kind = 'fixed_window' AND limit_starts[i.nth_limit] IS NULL THEN rate_limit._phase(i.name, i.key)
          ELSE limit_starts[i.nth_limit]
        END
        ORDER BY i.nth) AS starts,
      array_agg(i.name || '/started' ORDER BY i.nth) FILTER (WHERE i.nth = i.first_nth) AS bucket_names,
      array_agg(i.key ORDER BY i.nth) FILTER (WHERE i.nth = i.first_nth) AS bucket_keys,
      array_agg(i.nth_bucket ORDER BY i.nth) AS buckets,
      array_agg(i.nth::integer ORDER BY i.nth) AS limits,
      -- With one bucket for each item and one item for each call, pass NULL instead: it is faster.
      max(i.nth_bucket) = items AND cardinality(call_sizes) = items AS is_plain
    FROM (
      SELECT i.*, limit_kinds[i.nth_limit] AS kind, dense_rank() OVER (ORDER BY i.first_nth)::integer AS nth_bucket
      FROM (
        SELECT i.*, min(i.nth) OVER (PARTITION BY i.name COLLATE "C", i.key COLLATE "C") AS first_nth
        FROM unnest(item_names, item_keys, item_counts, item_limits) WITH ORDINALITY
          AS i (name, key, count, nth_limit, nth)
      ) AS i
    ) AS i
  ) AS a
  CROSS JOIN LATERAL rate_limit._decide(
    a.kinds, a.rates, a.periods, a.capacities, item_max_reserved, a.starts, NULL, NULL, a.bucket_names, a.bucket_keys,
    CASE WHEN NOT a.is_plain THEN a.buckets END, a.limits, coalesce(item_amounts, item_counts), call_ops, call_reserves,
    CASE WHEN NOT a.is_plain THEN call_sizes END, call_times, call_ats
  ) AS d;
END
$function$;
