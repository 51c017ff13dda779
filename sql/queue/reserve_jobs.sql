-- Returns the tokens that jobs need from each token bucket, and how far they may take it below 0 (`debt`), if each job needs one
-- bucket and each bucket has one limit: a bucket of another kind, or with an invalid limit, is left out. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._reservations(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[],
  item_limits integer[], item_counts double precision[]
) RETURNS TABLE (
  bucket integer, name text, key text, rate double precision, period bigint, capacity double precision, amount double precision,
  debt double precision
) LANGUAGE sql STABLE
AS $function$
  SELECT
    i.bucket, bucket_names[i.bucket], bucket_keys[i.bucket], min(i.rate), min(i.period), min(i.capacity), sum(i.count),
    min(rate_limit._most_debt(i.max_reserved, i.count))
  FROM (
    SELECT
      u.bucket, u.count, l.nth AS nth_limit, limit_kinds[l.nth] AS kind, limit_rates[l.nth] AS rate,
      limit_periods[l.nth] AS period, coalesce(limit_capacities[l.nth], limit_rates[l.nth]) AS capacity,
      limit_max_reserved[l.nth] AS max_reserved, coalesce(limit_shards[l.nth], 1) AS shards
    FROM unnest((SELECT item_buckets), item_limits, item_counts) AS u (bucket, nth_limit, count)
    CROSS JOIN LATERAL (SELECT coalesce(u.nth_limit, 1) AS nth) AS l
    OFFSET 0 -- So that the planner does not compute an expression twice.
  ) AS i
  GROUP BY i.bucket
  HAVING min(i.nth_limit) = max(i.nth_limit) AND bool_and(
    i.kind = 'token_bucket' AND i.shards = 1 AND rate_limit._in_range(i.rate, i.period, i.capacity)
      AND rate_limit._is_exact(i.count, i.capacity) AND (i.max_reserved BETWEEN 0 AND 1e13) IS NOT FALSE)
$function$;
COMMENT ON FUNCTION rate_limit._reservations IS 'Returns the tokens that jobs need from each token bucket.';

-- Takes the reservations of jobs, or the tokens of their starts. The arguments and results are those of _decide.
--
--   only_covered  if a bucket does not cover its sum, nothing is taken, and item_values is NULL. Otherwise they are the balances
--                 of the buckets
--   holds_rows    rows of the buckets may be locked, although nothing was taken
--
-- If each job has one token bucket, one UPDATE takes the sums of all of them. A look without locks comes first, so that a denial
-- locks nothing. If all buckets cover their sums, their rows are locked in order, and the UPDATE waits for none: its time is
-- right. Otherwise _decide decides.
CREATE OR REPLACE FUNCTION rate_limit._reserve_jobs(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[], limit_shards integer[],
  bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[], item_counts double precision[],
  call_ops text[], call_sizes integer[], only_covered boolean DEFAULT false,
  OUT call_admitted integer[], OUT call_waits bigint[], OUT item_refused boolean[], OUT item_values double precision[],
  OUT decided_at bigint, OUT holds_rows boolean
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_hashjoin = off SET enable_mergejoin = off
AS $function$
#variable_conflict use_column
DECLARE
  buckets CONSTANT integer := cardinality(bucket_names);
  -- With one bucket for each job and one job for each bucket, _decide gets NULL instead, which is faster.
  is_plain CONSTANT boolean := buckets = ALL (ARRAY[cardinality(call_sizes), cardinality(item_buckets)]) AND 1 = ALL (call_sizes);
  now bigint := rate_limit._clock();
  covered integer; -- the buckets that cover their sums
  taken integer[]; -- the buckets
  balances double precision[]; -- what is left in them
  times bigint[];
BEGIN
  IF 1 = ALL (call_sizes) AND ('limit' = ALL (call_ops)) IS NOT FALSE AND NOT rate_limit._is_distributed() THEN
    covered := (
      SELECT count((
          SELECT r.ts
          FROM rate_limit.rate_limits AS r
          WHERE r.name = a.name AND r.key = a.key AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
            AND rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) >= a.amount - a.debt
        ))
      FROM rate_limit._reservations(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
        item_buckets, item_limits, item_counts) AS a
    );
  END IF;
  IF covered = buckets THEN
    PERFORM
    FROM (
      SELECT u.*
      FROM unnest((SELECT bucket_names), bucket_keys) AS u (name, key)
      ORDER BY u.name COLLATE "C", u.key COLLATE "C" -- The order of all calls.
    ) AS u
    CROSS JOIN LATERAL (
      SELECT
      FROM rate_limit.rate_limits AS r
      WHERE r.name = u.name AND r.key = u.key AND r.shard = 0
      FOR NO KEY UPDATE
    ) AS r;
    now := rate_limit._clock();
    WITH u AS (
      UPDATE rate_limit.rate_limits AS r
      SET
        value = rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) - a.amount,
        ts = greatest(now, r.ts),
        idle_at = rate_limit._token_bucket_idle_at(
          rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) - a.amount, greatest(now, r.ts),
          a.rate, a.period, a.capacity)
      FROM rate_limit._reservations(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
        item_buckets, item_limits, item_counts) AS a
      WHERE r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
        AND rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) >= a.amount - a.debt
      RETURNING a.bucket, r.value, r.ts
    )
    SELECT array_agg(u.bucket ORDER BY u.bucket), array_agg(u.value ORDER BY u.bucket), array_agg(u.ts ORDER BY u.bucket)
    INTO taken, balances, times
    FROM u;
    IF cardinality(taken) = buckets THEN
      decided_at := now;
      item_values := balances;
      IF only_covered THEN
        RETURN;
      END IF;
      SELECT
        array_agg(i.balance ORDER BY i.nth),
        array_agg(
          times[i.bucket] - now + rate_limit._token_bucket_reserved_wait(
            i.balance, i.count, limit_rates[l.nth], limit_periods[l.nth], coalesce(limit_capacities[l.nth], limit_rates[l.nth]))
          ORDER BY i.nth)
      INTO item_values, call_waits
      FROM (
        SELECT i.*, balances[i.bucket] - i.count + sum(i.count) OVER (PARTITION BY i.bucket ORDER BY i.nth DESC) AS balance
        FROM unnest((SELECT item_buckets), item_limits, item_counts) WITH ORDINALITY AS i (bucket, nth_limit, count, nth)
      ) AS i
      CROSS JOIN LATERAL (SELECT coalesce(i.nth_limit, 1) AS nth) AS l;
      RETURN;
    END IF;
    -- A bucket has changed since the look: what was taken goes back.
    PERFORM rate_limit._retake(
      bucket_names[t.bucket], bucket_keys[t.bucket], 0, 'token_bucket', limit_rates[t.nth_limit], limit_periods[t.nth_limit],
      coalesce(limit_capacities[t.nth_limit], limit_rates[t.nth_limit]), NULL, 1, t.amount, 0, NULL)
    FROM (
      SELECT i.bucket, coalesce(min(i.nth_limit), 1) AS nth_limit, sum(i.count) AS amount
      FROM unnest(item_buckets, item_limits, item_counts) AS i (bucket, nth_limit, count)
      WHERE i.bucket = ANY (taken)
      GROUP BY i.bucket
    ) AS t;
  END IF;
  holds_rows := coalesce(covered = buckets, false);
  IF only_covered THEN
    RETURN;
  END IF;
  SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values, d.decided_at
  INTO call_admitted, call_waits, item_refused, item_values, decided_at
  FROM rate_limit._decide(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
    limit_shards, bucket_names, bucket_keys, CASE WHEN NOT is_plain THEN item_buckets END, item_limits, item_counts, call_ops,
    array_fill(true, ARRAY[cardinality(call_sizes)]), CASE WHEN NOT is_plain THEN call_sizes END, NULL, NULL,
    holds_rows => holds_rows
  ) AS d;
END
$function$;
COMMENT ON FUNCTION rate_limit._reserve_jobs IS 'Takes the reservations of jobs.';
