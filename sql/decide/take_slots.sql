-- Takes, releases or renews slots, one call for each bucket, where that is simple. It is simple if no lease has ended since the
-- row was written, and there are enough slots, or the lease is held. Returns the free slots of each bucket afterwards, in the
-- order given; NULL for a call that the client then lets _decide decide, in a later transaction.
--
--   limit_*    as for _decide
--   bucket_*   names and keys, sorted by their bytes, each bucket once; and the index of each bucket's limit
--   call_*     the op (limit, release, renew), the count and the lease of the call on each bucket
--
-- Run it only in its own transaction: see _decide_sums, which does the same for tokens.
CREATE OR REPLACE FUNCTION rate_limit._take_slots(
  limit_rates double precision[], limit_periods bigint[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  call_ops text[], call_counts double precision[], call_leases bigint[]
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
  buckets CONSTANT integer := cardinality(bucket_names);
  now CONSTANT bigint := rate_limit._clock();
  free double precision[] := array_fill(CAST(NULL AS double precision), ARRAY[buckets]);
  taken integer[];
  released integer[];
  balances double precision[];
  later bigint;
  asked record;
BEGIN
  WITH u AS (
    UPDATE rate_limit.rate_limits AS r
    SET
      value = r.value + CASE a.op
        WHEN 'limit' THEN a.count
        WHEN 'renew' THEN 0
        ELSE - r.detail[array_position(r.detail, a.id) + 1]
      END,
      ts = now,
      idle_at = CASE
        WHEN a.op <> 'release' THEN now + a.period
        WHEN cardinality(r.detail) = 4 THEN now
        ELSE r.idle_at
      END,
      detail = CASE
        WHEN a.op = 'limit' THEN r.detail
        ELSE r.detail[: array_position(r.detail, a.id) - 2]
          || r.detail[array_position(r.detail, a.id) + 2 :]
      END || CASE a.op
        WHEN 'limit' THEN ARRAY[now + a.period, a.id, a.count]
        WHEN 'renew' THEN
          ARRAY[now + a.period, a.id, r.detail[array_position(r.detail, a.id) + 1]]
      END
    FROM rate_limit._asked_slots(
      limit_rates, limit_periods, bucket_names, bucket_keys, bucket_limits, call_ops, call_counts, call_leases) AS a
    WHERE r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0 AND r.detail[1] = -1 AND r.ts <= now
      AND coalesce(r.detail[2] > now, true)
      AND CASE
        WHEN a.op = 'limit' THEN
          r.value + a.count <= a.capacity AND r.idle_at <= now + a.period AND array_position(r.detail, a.id) IS NULL
        ELSE (a.op = 'release' OR r.idle_at <= now + a.period) AND array_position(r.detail, a.id) IS NOT NULL
      END
    RETURNING a.nth, a.capacity - r.value AS balance
  )
  SELECT array_agg(u.nth), array_agg(u.balance) INTO taken, balances FROM u;
  FOR place IN 1 .. coalesce(cardinality(taken), 0) LOOP
    free[taken[place]] := balances[place];
  END LOOP;

  -- New rows must be locked before existing ones, so insert only if no row is locked yet: see _decide_sums.
  IF taken IS NULL THEN
    IF NOT EXISTS (
      SELECT
      FROM unnest(bucket_names, bucket_keys) AS u (name, key)
      INNER JOIN rate_limit.rate_limits AS r ON r.name = ANY (ARRAY[u.name]) AND r.key = u.key AND r.shard = 0
    )
    THEN
      FOR asked IN
        SELECT *
        FROM rate_limit._asked_slots(
          limit_rates, limit_periods, bucket_names, bucket_keys, bucket_limits, call_ops, call_counts, call_leases) AS a
        WHERE a.op = 'limit' AND a.count <= a.capacity
        ORDER BY a.nth
      LOOP
        INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at, detail)
        VALUES (
          asked.name, asked.key, asked.count, now, now + asked.period,
          ARRAY[-1, now + asked.period, asked.id, asked.count])
        ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
        IF FOUND THEN
          taken := taken || asked.nth;
          free[asked.nth] := asked.capacity - asked.count;
        END IF;
      END LOOP;
    END IF;
  END IF;

  -- After a wait for a row, the leases would end too early, or have ended. Each is the last one of its row.
  later := rate_limit._clock();
  IF later - now > rate_limit._late_after(buckets) THEN
    UPDATE rate_limit.rate_limits AS r
    SET
      ts = later,
      idle_at = later + a.period,
      detail = r.detail[: cardinality(r.detail) - 3] || ARRAY[later + a.period]::double precision[]
        || r.detail[cardinality(r.detail) - 1 :]
    FROM rate_limit._asked_slots(
      limit_rates, limit_periods, bucket_names, bucket_keys, bucket_limits, call_ops, call_counts, call_leases) AS a
    WHERE a.nth = ANY (taken) AND a.op <> 'release' AND r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0;
  END IF;
  IF 'release' = ANY (call_ops) THEN
    released := ARRAY(
      SELECT o.nth::integer
      FROM unnest(call_ops) WITH ORDINALITY AS o (op, nth)
      WHERE o.op = 'release' AND free[o.nth] IS NOT NULL
      ORDER BY o.nth
    );
    PERFORM rate_limit._slots_freed(
      ARRAY['concurrency'], bucket_names, bucket_keys, released, NULL,
      ARRAY(SELECT free[b.nth] FROM unnest(released) WITH ORDINALITY AS b (nth, place) ORDER BY b.place));
  END IF;
  RETURN free;
END
$function$;

-- Returns the valid calls of _take_slots; `id` is the lease as it is stored. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._asked_slots(
  limit_rates double precision[], limit_periods bigint[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  call_ops text[], call_counts double precision[], call_leases bigint[]
) RETURNS TABLE (
  nth integer, name text, key text, op text, count double precision, id double precision, capacity double precision,
  period bigint
) LANGUAGE sql STABLE
AS $function$
  SELECT
    u.nth::integer, u.name, u.key, u.op, u.count, - u.lease::double precision, limit_rates[u.nth_limit],
    limit_periods[u.nth_limit]
  -- The sub-select hides the number of buckets from the planner, which would otherwise make a new plan for each small number.
  FROM unnest((SELECT bucket_names), bucket_keys, bucket_limits, call_ops, call_counts, call_leases)
    WITH ORDINALITY AS u (name, key, nth_limit, op, count, lease, nth)
  WHERE u.op IN ('limit', 'release', 'renew') AND u.lease BETWEEN 2 AND 9007199254740991
    AND limit_rates[u.nth_limit] BETWEEN 1 AND 1e13 AND limit_periods[u.nth_limit] BETWEEN 1 AND 3155760000000000
    AND u.count >= 1 AND u.count = floor(u.count)
$function$;
