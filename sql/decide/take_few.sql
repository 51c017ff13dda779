-- Takes the tokens of one call from two to eight buckets without shards, all or none, in one UPDATE. Returns the balances in the
-- order of the buckets; otherwise {1 or 0: whether it is allowed, its wait, the balances, 1 or 0 for each bucket: whether it
-- denies}.
--
--   bucket_*   names and keys, in the order of their bytes, in which all transactions lock rows; each bucket once
--   limit_*    the limit of each bucket. The kind is token_bucket, fixed_window or sliding_window (with two counters); the phase
--              is a start of a window
--   counts     what the call takes from each bucket
--   may_hold   the caller may already have locked rows of these buckets
--
-- It first looks whether all buckets cover their counts, so that a denial writes nothing. The call is handed on to _decide if one
-- does not, is new, or has a row of another kind. To set up the expressions of all kinds costs more than the rest of the call, so
-- token buckets have an UPDATE of their own. As in _take_token_bucket, there are few expressions of plpgsql; as in _decide_sums,
-- the sub-select hides the number of buckets, and ANY keeps the planner from scanning a small table.
CREATE OR REPLACE FUNCTION rate_limit._take_few(
  bucket_names text[], bucket_keys text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_phases bigint[], counts double precision[], may_hold boolean DEFAULT false
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  buckets CONSTANT integer := cardinality(bucket_names);
  now CONSTANT bigint := rate_limit._clock();
  covered integer; -- how many buckets cover their counts, at a look
  taken integer[];
  balances double precision[];
  waited bigint; -- NULL: not all buckets gave their tokens
  decided record;
BEGIN
  IF rate_limit._is_distributed() THEN
    NULL;
  ELSIF 'token_bucket' = ALL (limit_kinds) THEN
    WITH look AS (
      SELECT count(*) AS covered
      FROM unnest((SELECT bucket_names), bucket_keys, limit_rates, limit_periods, limit_capacities, counts)
        AS a (name, key, rate, period, capacity, count)
      JOIN rate_limit.rate_limits AS r ON r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0
      WHERE r.shards = 1 AND r.detail IS NULL AND rate_limit._can_take(a.rate, a.period, a.capacity, a.count, a.count, 1)
        AND rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) >= a.count
    ),
    u AS (
      UPDATE rate_limit.rate_limits AS r
      SET
        value = rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) - a.count,
        ts = greatest(now, r.ts),
        idle_at = rate_limit._token_bucket_idle_at(
          rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) - a.count, greatest(now, r.ts), a.rate,
          a.period, a.capacity)
      FROM unnest((SELECT bucket_names), bucket_keys, limit_rates, limit_periods, limit_capacities, counts) WITH ORDINALITY
        AS a (name, key, rate, period, capacity, count, nth)
      WHERE r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0 AND r.shards = 1 AND r.detail IS NULL
        AND rate_limit._token_bucket_value(r.value, r.ts, now, a.rate, a.period, a.capacity) >= a.count
        AND (SELECT l.covered FROM look AS l) = buckets
      RETURNING a.nth, r.value AS balance
    )
    SELECT
      array_agg(u.nth ORDER BY u.nth), array_agg(u.balance ORDER BY u.nth),
      CASE WHEN count(*) = buckets THEN rate_limit._clock() - now END, (SELECT l.covered FROM look AS l)
    INTO taken, balances, waited, covered
    FROM u;
  ELSE
    WITH look AS (
      SELECT count(*) AS covered
      FROM unnest(
        (SELECT bucket_names), bucket_keys, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_phases, counts
      ) AS a (name, key, kind, rate, period, capacity, phase, count)
      JOIN rate_limit.rate_limits AS r ON r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0
      WHERE r.shards = 1 AND rate_limit._fits(a.kind, r.detail, a.period, a.phase, 1)
        AND rate_limit._can_take(a.rate, a.period, a.capacity, a.count, a.count, 1)
        AND rate_limit._left(
          a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, 1) >= a.count
    ),
    u AS (
      UPDATE rate_limit.rate_limits AS r
      SET
        value = rate_limit._value_after(
          a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, 1, a.count),
        ts = greatest(now, r.ts),
        idle_at = rate_limit._idle_after(
          a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, 1, a.count),
        detail = rate_limit._counts_after(
          a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.phase, 1)
      FROM unnest(
        (SELECT bucket_names), bucket_keys, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_phases, counts
      ) WITH ORDINALITY AS a (name, key, kind, rate, period, capacity, phase, count, nth)
      WHERE r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0 AND r.shards = 1
        AND rate_limit._fits(a.kind, r.detail, a.period, a.phase, 1)
        AND rate_limit._left(
          a.kind, r.value, r.ts, r.detail, greatest(now, r.ts), a.rate, a.period, a.capacity, a.phase, 1) >= a.count
        AND (SELECT l.covered FROM look AS l) = buckets
      RETURNING a.nth, rate_limit._left(
        a.kind, r.value, r.ts, r.detail, r.ts, a.rate, a.period, a.capacity, a.phase, 1) AS balance
    )
    SELECT
      array_agg(u.nth ORDER BY u.nth), array_agg(u.balance ORDER BY u.nth),
      CASE WHEN count(*) = buckets THEN rate_limit._clock() - now END, (SELECT l.covered FROM look AS l)
    INTO taken, balances, waited, covered
    FROM u;
  END IF;
  IF waited <= rate_limit._late_after(buckets) THEN
    RETURN balances;
  END IF;

  -- It has waited (see _hand_on), or another transaction has changed a bucket since the look. Then the others get their tokens
  -- back.
  FOR place IN 1 .. coalesce(cardinality(taken), 0) LOOP
    balances[place] := rate_limit._retake(
      bucket_names[taken[place]], bucket_keys[taken[place]], 0, limit_kinds[taken[place]], limit_rates[taken[place]],
      limit_periods[taken[place]], limit_capacities[taken[place]], limit_phases[taken[place]], 1, counts[taken[place]],
      CASE WHEN waited IS NULL THEN 0 ELSE counts[taken[place]] END, CASE WHEN waited IS NOT NULL THEN rate_limit._clock() END);
  END LOOP;
  IF waited IS NOT NULL THEN
    RETURN balances;
  END IF;
  decided := rate_limit._decide(
    limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_phases, NULL, NULL, bucket_names, bucket_keys, NULL,
    ARRAY(SELECT generate_series(1, buckets)), counts, NULL, NULL, ARRAY[buckets], NULL, NULL,
    -- An UPDATE that has waited for a row may have locked it without changing it.
    holds_rows => may_hold OR coalesce(covered = buckets, false));
  -- The casts are for PostgreSQL 13, where || takes arrays of one type only.
  RETURN ARRAY[coalesce(decided.call_admitted[1], 1), decided.call_waits[1]]::double precision[] || decided.item_values || ARRAY(
    SELECT coalesce(decided.item_refused[nth], false)::integer::double precision
    FROM generate_series(1, buckets) AS nth
    ORDER BY nth
  );
END
$function$;
