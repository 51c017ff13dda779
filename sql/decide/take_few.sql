-- Takes the tokens of one call from two to eight buckets without shards, all or none, with one UPDATE for each. Returns the
-- balances in the order of the buckets; otherwise {1 or 0: whether it is allowed, its wait, the balances, 1 or 0 for each
-- bucket: whether it denies}.
--
--   bucket_*   names and keys, in the order of their bytes, in which all transactions lock rows; each bucket once
--   limit_*    the limit of each bucket. The kind is token_bucket, fixed_window or sliding_window (with two counters); the phase
--              is a start of a window
--   counts     what the call takes from each bucket
--
-- First it looks at all buckets but the first one, so that a denial writes nothing. It hands on to _decide if a bucket is new,
-- does not cover its count, or has a row of another kind. As in _take_token_bucket, there are few expressions of plpgsql.
CREATE OR REPLACE FUNCTION rate_limit._take_few(
  bucket_names text[], bucket_keys text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_phases bigint[], counts double precision[]
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_tidscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  now CONSTANT bigint := rate_limit._clock();
  buckets CONSTANT integer := cardinality(bucket_names);
  balances double precision[];
  decided record;
BEGIN
  <<quick>>
  BEGIN
    EXIT quick WHEN rate_limit._is_distributed() OR NOT coalesce(
      1e-6 <= ALL (limit_rates) AND 1e13 >= ALL (limit_rates) AND 1 <= ALL (limit_periods)
        AND 3155760000000000 >= ALL (limit_periods)
        AND 1e13 >= ALL (limit_capacities),
      false);
    FOR b IN 2 .. buckets LOOP
      PERFORM
      FROM (
          SELECT s.*
          FROM rate_limit.rate_limits AS s
          WHERE s.name = bucket_names[b] AND s.key = bucket_keys[b] AND s.shard BETWEEN 0 AND 0
          ORDER BY s.shard DESC
          LIMIT 1
        ) AS r
      WHERE r.shards = 1 AND rate_limit._fits(limit_kinds[b], r.detail, limit_periods[b], limit_phases[b], 1)
        AND rate_limit._left(
          limit_kinds[b], r.value, r.ts, r.detail, greatest(now, r.ts), limit_rates[b], limit_periods[b], limit_capacities[b],
          limit_phases[b], 1) >= counts[b];
      EXIT quick WHEN NOT FOUND;
    END LOOP;
    FOR b IN 1 .. buckets LOOP
      balances := balances || CASE
        WHEN NOT rate_limit._is_exact(counts[b], limit_capacities[b]) THEN NULL
        WHEN limit_kinds[b] = 'token_bucket'
        THEN rate_limit._update_token_bucket(
          bucket_names[b], bucket_keys[b], 0, 1, now, limit_rates[b], limit_periods[b], limit_capacities[b], counts[b])
        WHEN limit_kinds[b] = 'fixed_window'
        THEN rate_limit._update_fixed_window(
          bucket_names[b], bucket_keys[b], 0, 1, now, limit_rates[b], limit_periods[b], limit_capacities[b], limit_phases[b],
          counts[b])
        WHEN limit_kinds[b] = 'sliding_window'
        THEN rate_limit._update_sliding_window(
          bucket_names[b], bucket_keys[b], 0, 1, now, limit_rates[b], limit_periods[b], limit_phases[b], counts[b])
      END;
      EXIT quick WHEN balances[b] IS NULL;
    END LOOP;
    IF rate_limit._clock() - now > rate_limit._late_after(buckets) THEN -- It has waited: see _hand_on.
      FOR b IN 1 .. buckets LOOP
        balances[b] := rate_limit._retake(
          bucket_names[b], bucket_keys[b], 0, limit_kinds[b], limit_rates[b], limit_periods[b], limit_capacities[b],
          limit_phases[b], 1, counts[b], counts[b], rate_limit._clock());
      END LOOP;
    END IF;
    RETURN balances;
  END;

  -- Another transaction may have changed a bucket since the look. Then the buckets before it get their tokens back.
  FOR b IN 1 .. coalesce(cardinality(balances), 1) - 1 LOOP
    PERFORM rate_limit._retake(
      bucket_names[b], bucket_keys[b], 0, limit_kinds[b], limit_rates[b], limit_periods[b], limit_capacities[b], limit_phases[b],
      1, counts[b], 0, NULL);
  END LOOP;
  decided := rate_limit._decide(
    limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_phases, NULL, NULL, bucket_names, bucket_keys, NULL,
    ARRAY(SELECT generate_series(1, buckets)), counts, NULL, NULL, ARRAY[buckets], NULL, NULL,
    -- An UPDATE that has waited for a row may have locked it without changing it. If the first row does not exist, none is
    -- locked.
    holds_rows => balances IS NOT NULL AND EXISTS (
      SELECT
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_names[1] AND r.key = bucket_keys[1] AND r.shard = 0
    ));
  -- The casts are for PostgreSQL 13, where || takes arrays of one type only.
  RETURN ARRAY[coalesce(decided.call_admitted[1], 1), decided.call_waits[1]]::double precision[] || decided.item_values || ARRAY(
    SELECT coalesce(decided.item_refused[nth], false)::integer::double precision
    FROM generate_series(1, buckets) AS nth
    ORDER BY nth
  );
END
$function$;
