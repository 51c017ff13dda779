-- Decides calls on the buckets in which starts of jobs are counted. Such a bucket has the key of the bucket that the job
-- reserved from, and its name with '/started' added. Its capacity is at least the count of one job and the grant of one window:
-- otherwise some jobs could never start on time.
--
--   item_names, item_keys, item_counts  one element for each item: the limit and key that the job reserved from, and its count
--   item_limits        the index of the item's limit in limit_*
--   item_amounts       the tokens that the call takes; NULL: the counts
--   item_max_reserved  how many tokens the bucket may owe after the item; NULL: no bound
--   call_*             as for _decide; call_sizes may not be NULL
--   results            as of _decide, and the time as of which it decided, unless call_ats gives one
--
-- It is above _decide_each, as _decide is: that lets only the owner set the clock, and a worker needs no more than EXECUTE.
CREATE OR REPLACE FUNCTION rate_limit._decide_started(
  item_names text[], item_keys text[], item_counts double precision[], item_limits integer[], item_amounts double precision[],
  item_max_reserved double precision[], call_ops text[], call_reserves boolean[], call_sizes integer[], call_times integer[],
  call_ats bigint[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], OUT call_admitted integer[], OUT call_waits bigint[],
  OUT item_refused boolean[], OUT item_values double precision[], OUT decided_at bigint
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  items CONSTANT integer := cardinality(item_names);
  amounts CONSTANT double precision[] := coalesce(item_amounts, item_counts);
  asked record;
  decided record;
  holds_rows boolean := false;
BEGIN
  SELECT
    array_agg(i.kind ORDER BY i.nth) AS kinds,
    array_agg(i.rate ORDER BY i.nth) AS rates,
    array_agg(i.period ORDER BY i.nth) AS periods,
    array_agg(i.capacity ORDER BY i.nth) AS capacities,
    array_agg(
      -- Without a start, the windows are those of the bucket that the job reserved from, which has another name.
      CASE
        WHEN i.kind = 'fixed_window' AND limit_starts[i.nth_limit] IS NULL THEN rate_limit._phase(i.name, i.key)
        ELSE limit_starts[i.nth_limit]
      END
      ORDER BY i.nth) AS starts,
    array_agg(i.bucket ORDER BY i.nth_bucket) FILTER (WHERE i.nth = i.first_nth) AS bucket_names,
    array_agg(i.key ORDER BY i.nth_bucket) FILTER (WHERE i.nth = i.first_nth) AS bucket_keys,
    array_agg(i.nth_bucket ORDER BY i.nth) AS buckets,
    array_agg(i.nth::integer ORDER BY i.nth) AS limits,
    -- With one bucket for each item and one item for each call, pass NULL instead: it is faster.
    bool_and(i.nth_bucket = i.nth) AND cardinality(call_sizes) = items AS is_plain,
    -- Nothing may corrupt a row. NaN is larger than every other number.
    bool_and(coalesce(rate_limit._in_range(i.rate, i.period, i.capacity) AND amounts[i.nth] BETWEEN 0 AND 1e13, false))
      AS is_valid
  INTO asked
  FROM (
    SELECT
      u.*, limit_rates[u.nth_limit] AS rate, limit_periods[u.nth_limit] AS period,
      greatest(
        coalesce(limit_capacities[u.nth_limit], limit_rates[u.nth_limit]), u.count,
        CASE WHEN u.kind = 'fixed_window' OR u.kind LIKE 'calendar_window %' THEN limit_rates[u.nth_limit] END) AS capacity,
      min(u.nth) OVER (PARTITION BY u.bucket COLLATE "C", u.key COLLATE "C") AS first_nth,
      -- Rows are locked in one order.
      dense_rank() OVER (ORDER BY u.bucket COLLATE "C", u.key COLLATE "C")::integer AS nth_bucket
    FROM (
      SELECT u.*, u.name || '/started' AS bucket, limit_kinds[u.nth_limit] AS kind
      FROM unnest((SELECT item_names), item_keys, item_counts, item_limits)
        WITH ORDINALITY AS u (name, key, count, nth_limit, nth)
    ) AS u
  ) AS i;
  IF asked.is_valid IS NOT TRUE THEN
    RAISE EXCEPTION 'a limit or a count of the jobs on % is not valid', array_to_string(asked.bucket_names, ', ')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call _validate.';
  END IF;
  -- Most claims start all their jobs now: one UPDATE takes the tokens.
  IF call_ops IS NULL AND call_reserves IS NULL AND call_ats IS NULL AND item_max_reserved IS NULL
    AND cardinality(asked.bucket_names) = items
  THEN
    decided := rate_limit._reserve_jobs(
      asked.kinds, asked.rates, asked.periods, asked.capacities, array_fill(0::double precision, ARRAY[items]), NULL, NULL, NULL,
      asked.bucket_names, asked.bucket_keys, asked.buckets, asked.limits,
      ARRAY(SELECT u.amount * u.times FROM unnest(amounts, call_times) WITH ORDINALITY AS u (amount, times, nth) ORDER BY u.nth),
      NULL, call_sizes, only_covered => true);
    decided_at := decided.decided_at;
    IF decided.item_values IS NOT NULL THEN
      RETURN;
    END IF;
    holds_rows := decided.holds_rows;
  END IF;
  decided := rate_limit._decide_each(
    asked.kinds, asked.rates, asked.periods, asked.capacities, item_max_reserved, asked.starts, NULL, NULL,
    asked.bucket_names, asked.bucket_keys, CASE WHEN NOT asked.is_plain THEN asked.buckets END, asked.limits, amounts, call_ops,
    call_reserves, CASE WHEN NOT asked.is_plain THEN call_sizes END, call_times, call_ats, NULL, holds_rows, NULL);
  call_admitted := decided.call_admitted;
  call_waits := decided.call_waits;
  item_refused := decided.item_refused;
  item_values := decided.item_values;
  decided_at := decided.decided_at;
END
$function$;
