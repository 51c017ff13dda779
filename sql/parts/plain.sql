-- Plain calls: one token bucket each, no reservation, the database's clock. The UPDATE that takes the tokens decides;
-- it leaves alone what has too few of them, what has no row, and what is not valid: the rest of the function looks at that.
IF item_buckets IS NULL AND call_ops IS NULL AND call_reserves IS NULL AND call_sizes IS NULL AND call_ats IS NULL THEN
  moment := public.rate_limit_clock();
  IF buckets = 1 THEN
    limit_in_hand := CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[1] END;
    kind := limit_kinds[limit_in_hand];
    rate := limit_rates[limit_in_hand];
    period := limit_periods[limit_in_hand];
    capacity := coalesce(limit_capacities[limit_in_hand], rate);
    times := CASE WHEN call_times IS NULL THEN 1 ELSE call_times[1] END;
    amount := CASE WHEN item_counts IS NULL THEN 1 ELSE item_counts[1] END * times;
    IF
      --@include plain_limit
    THEN
      UPDATE public.rate_limits AS bucket
      SET
        --@include token_bucket.taken
      WHERE bucket.name = bucket_names[1] AND bucket.key = bucket_keys[1] AND bucket.shard = 0
        AND bucket.earlier_counts IS NULL
        --@include token_bucket.enough
      RETURNING
        --@include token_bucket.left_over
      INTO after;
      IF FOUND THEN
        item_values := ARRAY[after];
        waited := public.rate_limit_clock();
        IF waited - moment <= 10000 THEN
          RETURN;
        END IF;
        settled := ARRAY[1];
        settled_values := ARRAY[after];
      END IF;
    END IF;
  ELSE
    WITH updated AS (
      UPDATE public.rate_limits AS bucket
      SET
        --@include token_bucket.taken
      FROM (
        --@include asked
      ) AS asked
      -- ANY, because `=` on the first column of the key would let the planner read a whole small table in its order,
      -- and keep to that when the table has grown.
      WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
        AND bucket.earlier_counts IS NULL
        --@include token_bucket.enough
      RETURNING
        asked.nth,
        --@include token_bucket.left_over
        AS left_over
    )
    SELECT array_agg(u.nth), array_agg(u.left_over) INTO settled, settled_values FROM updated AS u;
    waited := public.rate_limit_clock();
  END IF;
  -- Somebody had a row: what was decided as of a moment before the wait is brought to the time after it, or tokens that
  -- flowed in while the bucket was full would be had twice.
  IF settled IS NOT NULL AND waited - moment > 10000 + 100 * buckets THEN
    moment := waited;
    WITH updated AS (
      UPDATE public.rate_limits AS bucket
      SET
        --@include token_bucket.kept_waiting
      FROM (
        --@include asked
      ) AS asked
      WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
        AND asked.nth = ANY (settled)
      RETURNING
        asked.nth,
        --@include token_bucket.left_over
        AS left_over
    )
    SELECT array_agg(u.nth), array_agg(u.left_over) INTO settled, settled_values FROM updated AS u;
  END IF;
  FOR i IN 1 .. coalesce(cardinality(settled), 0) LOOP
    item_values[settled[i]] := settled_values[i];
    is_settled[settled[i]] := true;
  END LOOP;
  IF cardinality(settled) = buckets THEN
    RETURN;
  END IF;
END IF;

--@ part plain_limit: what the general way would refuse
kind = 'token_bucket' AND rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000
AND capacity BETWEEN 0 AND 1e100 AND times >= 1 AND (amount = 0 OR amount BETWEEN 1e-100 AND 1e100)

--@ part asked: what each plain call asks, in the global order
SELECT a.*
FROM (
  SELECT
    i.nth::integer AS nth,
    i.name,
    i.key,
    (0 * i.nth)::integer AS shard, -- A constant would be looked up on its own.
    limit_kinds[i.nth_limit] AS kind,
    limit_rates[i.nth_limit] AS rate,
    limit_periods[i.nth_limit] AS period,
    coalesce(limit_capacities[i.nth_limit], limit_rates[i.nth_limit]) AS capacity,
    i.times,
    i.count * i.times AS amount
  FROM (
    SELECT
      u.nth,
      u.name,
      u.key,
      CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit,
      CASE WHEN item_counts IS NULL THEN 1 ELSE u.count END AS count,
      CASE WHEN call_times IS NULL THEN 1 ELSE u.times END AS times
    FROM unnest(bucket_names, bucket_keys, item_limits, item_counts, call_times)
      WITH ORDINALITY AS u (name, key, nth_limit, count, times, nth)
  ) AS i
) AS a
WHERE
  --@include plain_limit
ORDER BY a.name COLLATE "C", a.key COLLATE "C"
