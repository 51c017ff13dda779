
DO $table$
DECLARE
  yugabyte CONSTANT boolean := pg_catalog.version() LIKE '%-YB-%';
BEGIN
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE TABLE IF NOT EXISTS public.rate_limits (
      name text COLLATE "C" NOT NULL,
      key text COLLATE "C" NOT NULL,
      shard integer NOT NULL DEFAULT 0,
      shards integer NOT NULL DEFAULT 1,
      value double precision NOT NULL,
      ts bigint NOT NULL,
      idle_at bigint NOT NULL,
      earlier_counts double precision[],
      CONSTRAINT rate_limits_pkey PRIMARY KEY (%s)
    ) %s
    $ddl$,
    CASE WHEN yugabyte THEN '(name, key, shard) HASH' ELSE 'name, key, shard' END,
    CASE WHEN yugabyte THEN '' ELSE 'WITH (fillfactor = 70)' END
  );
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE OR REPLACE VIEW public.rate_limits_seen AS
    SELECT r.name, r.key, r.shard, r AS bucket, %s AS in_use
    FROM public.rate_limits AS r
    $ddl$,
    CASE WHEN yugabyte THEN 'false' ELSE 'r.xmax <> 0 AND r.xmax <> r.xmin' END
  );
END
$table$;

COMMENT ON TABLE public.rate_limits IS
  'Rate limit buckets. A bucket without a row is full. Written by the functions beside it only.';
COMMENT ON VIEW public.rate_limits_seen IS
  'The rows as the functions see them: with whether a transaction is writing, or has written since.';
COMMENT ON COLUMN public.rate_limits.name IS 'The limit''s name.';
COMMENT ON COLUMN public.rate_limits.key IS 'Who is limited; empty for a global limit.';
COMMENT ON COLUMN public.rate_limits.shard IS 'The part of a sharded bucket, from 0 on; 0 for the others.';
COMMENT ON COLUMN public.rate_limits.shards IS 'How many rows its bucket has: each is the bucket of one part of the limit.';
COMMENT ON COLUMN public.rate_limits.value IS
  'The balance at ts, negative while tokens are owed; for a sliding window the count of the sub-interval that holds ts.';
COMMENT ON COLUMN public.rate_limits.ts IS
  'Microseconds since the Unix epoch: to_timestamp(ts / 1e6).';
COMMENT ON COLUMN public.rate_limits.idle_at IS
  'The moment, in microseconds since the Unix epoch, from which the row equals no row.';
COMMENT ON COLUMN public.rate_limits.earlier_counts IS
  'For a sliding window: its period, start and rate, then the counts of the sub-intervals before, newest first. NULL for the other kinds.';

CREATE OR REPLACE FUNCTION public.rate_limit_clock()
RETURNS bigint
LANGUAGE sql VOLATILE
AS $function$
  SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_phase(bucket_name text, bucket_key text)
RETURNS bigint
LANGUAGE sql STABLE
AS $function$
  SELECT ('x' || pg_catalog.substr(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
    bucket_name || ':' || bucket_key, 'UTF8')), 'hex'), 1, 14))::bit(56)::bigint
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_validate(
  kind text,
  rate double precision,
  period bigint,
  capacity double precision,
  max_reserved double precision,
  start bigint,
  resolution integer,
  shards integer
)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  reason text;
BEGIN
  IF NOT coalesce(rate BETWEEN 1e-100 AND 1e100, false) THEN
    reason := format('the rate %s is not a number from 1e-100 to 1e100', coalesce(rate::text, 'NULL'));
  ELSIF NOT coalesce(period BETWEEN 1 AND 3155760000000000, false) THEN
    reason := 'the period is not between 1 microsecond and 36525 days';
  ELSIF NOT (capacity BETWEEN 0 AND 1e100) THEN
    reason := format('the capacity %s is not a number from 0 to 1e100', capacity);
  ELSIF NOT (max_reserved BETWEEN 0 AND 1e100) THEN
    reason := format('max_reserved %s is not a number from 0 to 1e100', max_reserved);
  ELSIF NOT (resolution BETWEEN 1 AND 1000) THEN
    reason := format('the resolution %s is not between 1 and 1000', resolution);
  ELSIF NOT coalesce(shards BETWEEN 1 AND 1000, false) THEN
    reason := format('the number of shards %s is not between 1 and 1000', coalesce(shards::text, 'NULL'));
  ELSIF shards > 1 AND coalesce(capacity, rate) / shards < 1 THEN
    reason := format('%s tokens over %s shards are %s each, less than 1: at most %s shards have one', coalesce(capacity, rate),
      shards, coalesce(capacity, rate) / shards, greatest(floor(coalesce(capacity, rate)), 1));
  ELSIF kind = 'fixed_window' THEN
    IF resolution IS NOT NULL THEN
      reason := 'resolution does not apply to a fixed window';
    END IF;
  ELSIF kind = 'sliding_window' THEN
    IF capacity IS NOT NULL OR max_reserved IS NOT NULL THEN
      reason := 'capacity and max_reserved do not apply to a sliding window';
    END IF;
  ELSIF kind = 'token_bucket' THEN
    IF start IS NOT NULL OR resolution IS NOT NULL THEN
      reason := 'start and resolution do not apply to a token bucket';
    END IF;
  ELSE
    reason := format('there is no kind "%s"', coalesce(kind, 'NULL'));
  END IF;
  IF reason IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_limit: %', reason
      USING ERRCODE = 'invalid_parameter_value', HINT = 'See the kinds of limits and their options.';
  END IF;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_decide(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  limit_shards integer[],
  bucket_names text[],
  bucket_keys text[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  call_ops text[],
  call_reserves boolean[],
  call_sizes integer[],
  call_times integer[],
  call_ats bigint[],
  holds_rows boolean DEFAULT false,
  OUT call_admitted integer[],
  OUT call_waits bigint[],
  OUT item_refused boolean[],
  OUT item_values double precision[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
  buckets CONSTANT integer := coalesce(cardinality(bucket_names), 0);
  items CONSTANT integer := coalesce(cardinality(item_buckets), buckets);
  calls CONSTANT integer := coalesce(cardinality(call_sizes), items);
  sorted integer[];
  locks_first boolean;
  locking boolean;
  hurried boolean;
  missing_ones boolean;
  holds_some boolean;
  again boolean;
  pending boolean;
  clock bigint;

  settled integer[];
  settled_values double precision[];
  settled_waits bigint[];
  is_settled boolean[];
  is_done boolean;
  settled_at bigint;
  item_calls integer[];
  first_short_name text;
  first_short_key text;
  first_left_name text;
  first_left_key text;
  has_new boolean;
  new_buckets integer[];
  new_capacities double precision[];
  new_amounts double precision[];
  new_refills bigint[];
  was_put integer[];
  put_values double precision[];

  rows public.rate_limits[];
  row_exists boolean[];
  row_present boolean[];
  row_changed boolean[];
  rows_before public.rate_limits[];
  present_before boolean[];
  to_update public.rate_limits[];
  to_insert public.rate_limits[];
  to_insert_last public.rate_limits[];
  to_delete public.rate_limits[];
  written bigint;
  missed bigint := 0;

  bucket_shards integer[];
  first_shards integer[];
  second_shards integer[];
  chosen_shards integer[];
  pair_balances double precision[];
  beyond_rows double precision[];
  spare_balances double precision[];
  asked_counts double precision[];
  others public.rate_limits[];
  prefers_first boolean[];
  looks_at_all boolean[];
  widened boolean;
  is_gathered boolean[];
  shares public.rate_limits[];
  share_balances double precision[];
  nth_share integer;
  nth_shard integer;
  first_shares integer[];
  share_counts integer[];
  gathered_rows public.rate_limits[];
  gathered_limits integer[];
  gathered_ats bigint[];
  gathered_totals double precision[];
  may_drain boolean[];
  is_split boolean[];
  is_removed boolean[];
  was_drained boolean[];
  is_anchored boolean[];
  rows_found public.rate_limits[];
  drained public.rate_limits[];
  shards_there integer[];
  shards_gone integer[];

  parts integer;
  looks integer;
  look_lacks double precision[];
  look_inflows double precision[];
  lack double precision;
  inflow double precision;
  total double precision;
  pairs boolean;
  gathers boolean;
  header double precision[];
  kept public.rate_limits;
  kept_balance double precision;
  sums double precision[];

  in_hand integer;
  limit_in_hand integer;
  moment bigint;
  touched boolean;
  present boolean;
  bucket public.rate_limits;
  kind text;
  rate double precision;
  period bigint;
  capacity double precision;
  resolution integer;
  now bigint;
  count double precision;
  balance double precision;
  tolerance double precision;
  missing double precision;
  wait double precision;
  part double precision;
  opened bigint;
  sub_interval bigint;
  gone double precision;

  op text;
  at bigint;
  times integer;
  admitted integer;
  one double precision;
  first_item integer;
  last_item integer := 0;
  grouped boolean;
  refused boolean;
  ok boolean;
  done boolean;
  after double precision;
  least_balance double precision;
  slack double precision;
  undo_rows public.rate_limits[];
  undo_present boolean[];
  undo_gathered boolean[];
  undo_balance double precision[];

  b integer;
BEGIN
  IF NOT coalesce(
    cardinality(bucket_keys) = buckets AND coalesce(cardinality(item_limits), items) = items
      AND coalesce(cardinality(item_counts), items) = items AND coalesce(cardinality(call_ops), calls) = calls
      AND coalesce(cardinality(call_times), calls) = calls,
    false)
  THEN
    RAISE EXCEPTION 'the arrays for % buckets, % items and % calls differ in length', buckets, items, calls
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one element each, or NULL for the whole array.';
  END IF;

  locks_first := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
  IF item_buckets IS NULL AND call_ops IS NULL AND call_ats IS NULL
    AND (call_reserves IS NULL OR (call_sizes IS NULL AND call_times IS NULL AND limit_shards IS NULL))
  THEN
    now := public.rate_limit_clock();
    IF limit_shards IS NOT NULL THEN
      SELECT
        array_agg(c.shard ORDER BY c.nth),
        array_agg(c.of_both ORDER BY c.nth),
        (array_agg(c.name ORDER BY c.name COLLATE "C", c.key COLLATE "C") FILTER (WHERE c.is_short))[1],
        (array_agg(c.key ORDER BY c.name COLLATE "C", c.key COLLATE "C") FILTER (WHERE c.is_short))[1]
      INTO chosen_shards, pair_balances, first_short_name, first_short_key
      FROM (
        SELECT a.nth, a.name, a.key, p.*, a.shards > 1 AND p.balance >= a.needed IS NOT TRUE AS is_short
        FROM (
          SELECT
            a.*,
            floor(random() * shards)::integer AS first,
            1 + floor(random() * (shards - 1))::integer AS step
          FROM (
            SELECT
              a.*,
              kind = 'token_bucket' AND times >= 1
              AND (first_short_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (first_short_name, first_short_key)) AND
              rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
              AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
              AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
              AS is_plain
            FROM (
              SELECT
                l.*,
                CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
                1e-9 + 1e-14 * l.capacity AS tolerance,
                CASE
                  WHEN l.reserves
                  THEN
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
                  limit_periods[i.nth_limit] AS period,
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
                  FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
                    WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
                  CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
                  OFFSET 0
                ) AS i
                OFFSET 0
              ) AS l
            ) AS a
            ORDER BY a.name COLLATE "C", a.key COLLATE "C"
          ) AS a
          OFFSET 0
        ) AS a
        LEFT JOIN LATERAL (
          SELECT f.shard, f.balance, sum(f.balance) OVER () AS of_both
          FROM (
            SELECT
              bucket.shard,
              bucket.in_use,
              least(
                bucket.value +
                greatest(now - bucket.ts, 0)::double precision * rate / period
                , capacity) AS balance
            FROM unnest(ARRAY[first, (first + step) % a.shards]) AS d (shard)
            CROSS JOIN LATERAL (
              SELECT (s.bucket).*, s.in_use
              FROM public.rate_limits_seen AS s
              WHERE s.name = a.name AND s.key = a.key AND s.shard = d.shard
              LIMIT 1
            ) AS bucket
            WHERE bucket.shards = a.shards AND bucket.earlier_counts IS NULL
          ) AS f
          ORDER BY f.balance >= amount DESC, f.in_use, f.balance DESC
          LIMIT 1
        ) AS p ON a.shards > 1 AND a.is_plain AND NOT locks_first
      ) AS c;
    END IF;
    IF buckets > 1 THEN
      SELECT
        coalesce(bool_or(l.is_new AND NOT l.fits), false),
        coalesce(array_agg(l.nth) FILTER (WHERE l.is_new), '{}'),
        array_agg(l.capacity) FILTER (WHERE l.is_new),
        array_agg(l.amount) FILTER (WHERE l.is_new),
        array_agg(l.refill) FILTER (WHERE l.is_new),
        (array_agg(l.name) FILTER (WHERE l.is_left))[1],
        (array_agg(l.key) FILTER (WHERE l.is_left))[1]
      INTO has_new, new_buckets, new_capacities, new_amounts, new_refills, first_left_name, first_left_key
      FROM (
        SELECT
          a.nth,
          a.name,
          a.key,
          a.capacity,
          a.amount,
          CASE WHEN a.is_plain THEN ceil(a.amount * a.period / a.rate)::bigint END AS refill,
          r.found IS NULL AS is_new,
          coalesce(a.is_plain AND a.shards = 1 AND call_sizes IS NULL AND a.amount <= a.capacity + a.tolerance, false) AS fits,
          r.found AND NOT coalesce(
            CASE
              WHEN NOT a.is_plain OR r.earlier_counts IS NOT NULL OR r.shards <> a.shards THEN false
              WHEN a.shards > 1 OR r.flow >= a.needed THEN true
              WHEN a.reserves OR a.times = 1 THEN r.flow + 1000000 * a.rate / a.period < a.needed
              ELSE r.flow + 1000000 * a.rate / a.period < a.amount / a.times - a.tolerance
            END,
            false) AS is_left
        FROM (
          SELECT
            a.*,
            kind = 'token_bucket' AND times >= 1
            AND (first_short_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (first_short_name, first_short_key)) AND
            rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
            AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
            AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
            AS is_plain
          FROM (
            SELECT
              l.*,
              CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
              1e-9 + 1e-14 * l.capacity AS tolerance,
              CASE
                WHEN l.reserves
                THEN
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
                limit_periods[i.nth_limit] AS period,
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
                FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
                  WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
                CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
                OFFSET 0
              ) AS i
              OFFSET 0
            ) AS l
          ) AS a
          ORDER BY a.name COLLATE "C", a.key COLLATE "C"
        ) AS a
        LEFT JOIN LATERAL (
          SELECT
            true AS found,
            bucket.shards,
            bucket.earlier_counts,
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            AS flow
          FROM public.rate_limits AS bucket
          WHERE bucket.name = a.name AND bucket.key = a.key AND bucket.shard = 0
          LIMIT 1
        ) AS r ON true
        ORDER BY a.name COLLATE "C", a.key COLLATE "C"
      ) AS l;
      IF (first_short_name COLLATE "C", first_short_key COLLATE "C") < (first_left_name, first_left_key) IS NOT TRUE
        AND first_left_name IS NOT NULL
      THEN
        first_short_name := first_left_name;
        first_short_key := first_left_key;
      END IF;
    END IF;
    IF has_new THEN
      NULL;
    ELSIF call_sizes IS NULL THEN
      FOR i IN 1 .. coalesce(cardinality(new_buckets), 0) LOOP
        INSERT INTO public.rate_limits (name, key, value, ts, idle_at)
        VALUES (
          bucket_names[new_buckets[i]], bucket_keys[new_buckets[i]], new_capacities[i] - new_amounts[i], now,
          now + new_refills[i])
        ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
        IF FOUND THEN
          was_put := was_put || new_buckets[i];
          put_values := put_values || (new_capacities[i] - new_amounts[i]);
        END IF;
      END LOOP;
      WITH asked AS (
        SELECT
          a.*,
          kind = 'token_bucket' AND times >= 1
          AND (first_short_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (first_short_name, first_short_key)) AND
          rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
          AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
          AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
          AS is_plain
        FROM (
          SELECT
            l.*,
            CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
            1e-9 + 1e-14 * l.capacity AS tolerance,
            CASE
              WHEN l.reserves
              THEN
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
              limit_periods[i.nth_limit] AS period,
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
              FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
                WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
              CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
              OFFSET 0
            ) AS i
            OFFSET 0
          ) AS l
        ) AS a
        ORDER BY a.name COLLATE "C", a.key COLLATE "C"
      ),
      updated AS (
        UPDATE public.rate_limits AS bucket
        SET
          value = least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity) - amount,
          ts = greatest(now, bucket.ts),
          idle_at = greatest(now, bucket.ts) + ceil((capacity + amount - least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity)) * period / rate)::bigint
        FROM asked
        WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
          AND bucket.shards = asked.shards AND bucket.earlier_counts IS NULL AND asked.is_plain
          AND (was_put IS NULL OR asked.nth <> ALL (was_put))
          AND
          bucket.value +
          greatest(now - bucket.ts, 0)::double precision * rate / period
          >= needed
        RETURNING
          asked.nth,
          CASE
            WHEN asked.shards > 1 THEN greatest(pair_balances[asked.nth] * asked.shards / 2 - amount, bucket.value)
            WHEN abs(bucket.value) <= asked.tolerance THEN 0
            ELSE bucket.value
          END AS left_over,
          CASE
            WHEN asked.reserves AND bucket.value < - asked.tolerance
            THEN (
              SELECT
                least(
                  ceil(
                    - left_over * period / rate
                    - least(0.001, (1e-9 + 1e-14 * greatest(capacity, abs(left_over + amount))) / 2 * period / rate)),
                  1e18
                )::bigint + (left_at - now)
              FROM (SELECT bucket.value AS left_over, bucket.ts AS left_at) AS b
            )
          END AS wait
      )
      SELECT array_agg(u.nth), array_agg(u.left_over), array_agg(u.wait) INTO settled, settled_values, settled_waits
      FROM updated AS u;
    ELSIF call_times IS NULL AND NOT locks_first THEN
      FOR nth IN 1 .. calls LOOP
        FOR i IN 1 .. greatest(coalesce(call_sizes[nth], 1), 1) LOOP
          last_item := last_item + 1;
          item_calls[last_item] := nth;
        END LOOP;
      END LOOP;
      WITH asked AS (
        SELECT
          a.*,
          kind = 'token_bucket' AND times >= 1
          AND (first_short_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (first_short_name, first_short_key)) AND
          rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
          AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
          AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
          AS is_plain
        FROM (
          SELECT
            l.*,
            CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
            1e-9 + 1e-14 * l.capacity AS tolerance,
            CASE
              WHEN l.reserves
              THEN
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
              limit_periods[i.nth_limit] AS period,
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
              FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
                WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
              CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
              OFFSET 0
            ) AS i
            OFFSET 0
          ) AS l
        ) AS a
        ORDER BY a.name COLLATE "C", a.key COLLATE "C"
      ),
      updated AS (
        UPDATE public.rate_limits AS bucket
        SET
          value = least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity) - amount,
          ts = greatest(now, bucket.ts),
          idle_at = greatest(now, bucket.ts) + ceil((capacity + amount - least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity)) * period / rate)::bigint
        FROM asked
        WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
          AND bucket.shards = asked.shards AND bucket.earlier_counts IS NULL AND asked.is_plain
          AND (was_put IS NULL OR asked.nth <> ALL (was_put))
          AND
          bucket.value +
          greatest(now - bucket.ts, 0)::double precision * rate / period
          >= needed
          AND item_calls[asked.nth] <> ALL (ARRAY(
            SELECT item_calls[a.nth]
            FROM asked AS a
            LEFT JOIN LATERAL (
              SELECT true AS has_enough
              FROM public.rate_limits AS bucket
              WHERE bucket.name = a.name AND bucket.key = a.key AND bucket.shard = a.shard
                AND bucket.shards = a.shards AND bucket.earlier_counts IS NULL AND a.is_plain
                AND
                bucket.value +
                greatest(now - bucket.ts, 0)::double precision * rate / period
                >= needed
              LIMIT 1
            ) AS b ON true
            WHERE b.has_enough IS NULL
          ))
        RETURNING
          asked.nth,
          CASE
            WHEN asked.shards > 1 THEN greatest(pair_balances[asked.nth] * asked.shards / 2 - amount, bucket.value)
            WHEN abs(bucket.value) <= asked.tolerance THEN 0
            ELSE bucket.value
          END AS left_over,
          CASE
            WHEN asked.reserves AND bucket.value < - asked.tolerance
            THEN (
              SELECT
                least(
                  ceil(
                    - left_over * period / rate
                    - least(0.001, (1e-9 + 1e-14 * greatest(capacity, abs(left_over + amount))) / 2 * period / rate)),
                  1e18
                )::bigint + (left_at - now)
              FROM (SELECT bucket.value AS left_over, bucket.ts AS left_at) AS b
            )
          END AS wait
      )
      SELECT array_agg(u.nth), array_agg(u.left_over), array_agg(u.wait) INTO settled, settled_values, settled_waits
      FROM updated AS u;
    END IF;
    IF was_put IS NOT NULL THEN
      settled := settled || was_put;
      settled_values := settled_values || put_values;
      settled_waits := settled_waits || array_fill(NULL::bigint, ARRAY[cardinality(was_put)]);
    END IF;
    settled_at := now;
    FOR i IN 1 .. coalesce(cardinality(settled), 0) LOOP
      is_settled[settled[i]] := true;
    END LOOP;
    is_done := cardinality(settled) = buckets;
    IF limit_shards IS NOT NULL THEN
      chosen_shards := ARRAY(
        SELECT CASE WHEN is_settled[n] THEN chosen_shards[n] END FROM generate_series(1, buckets) AS n ORDER BY n
      );
    END IF;
  END IF;

  IF is_done IS NOT TRUE THEN
    IF limit_shards IS NOT NULL THEN
      FOR item IN 1 .. items LOOP
        b := CASE WHEN item_buckets IS NULL THEN item ELSE item_buckets[item] END;
        parts := limit_shards[CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[item] END];
        IF NOT coalesce(b BETWEEN 1 AND buckets AND coalesce(parts, 1) BETWEEN 1 AND 1000, false) THEN
          RAISE EXCEPTION 'item % names a limit or a bucket that is not listed or not valid', item
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate; indices count from 1.';
        END IF;
        CONTINUE WHEN coalesce(parts, 1) = 1;
        bucket_shards[b] := parts;
        first_shards[b] := floor(random() * parts);
        second_shards[b] := (first_shards[b] + 1 + floor(random() * (parts - 1))::integer) % parts;
      END LOOP;
    END IF;
    IF item_buckets IS NULL THEN
      FOR i IN 1 .. items LOOP
        item_buckets[i] := i;
      END LOOP;
    END IF;
    item_limits := coalesce(item_limits, array_fill(1, ARRAY[items]));
    item_counts := coalesce(item_counts, array_fill(1::double precision, ARRAY[items]));
    call_ops := coalesce(call_ops, array_fill('limit'::text, ARRAY[calls]));
  END IF;

  last_item := 0;
  LOOP
    EXIT WHEN is_done;
    is_gathered := NULL;
    may_drain := NULL;
    widened := false;
    IF again IS NOT TRUE THEN
      IF buckets = 1 THEN
        SELECT r.*
        INTO bucket
        FROM public.rate_limits AS r
        WHERE r.name = bucket_names[1] AND r.key = bucket_keys[1] AND r.shard = 0
          AND (bucket_shards[1] IS NULL OR looks_at_all[1]);
        row_present[1] := FOUND;
        rows[1] := bucket;
        sorted := ARRAY[1];
      ELSE
        SELECT
          array_agg(a.nth ORDER BY a.name COLLATE "C", a.key COLLATE "C"),
          array_agg(r.whole ORDER BY a.nth),
          array_agg(coalesce(r.there, false) ORDER BY a.nth)
        INTO sorted, rows, row_present
        FROM unnest((SELECT bucket_names), bucket_keys) WITH ORDINALITY AS a (name, key, nth)
        LEFT JOIN LATERAL (
          SELECT t AS whole, true AS there
          FROM public.rate_limits AS t
          WHERE t.name = a.name AND t.key = a.key AND t.shard = 0 AND is_settled[a.nth] IS NOT TRUE
            AND (bucket_shards[a.nth] IS NULL OR looks_at_all[a.nth])
          LIMIT 1
        ) AS r ON true;
        FOR i IN 2 .. buckets LOOP
          IF bucket_keys[sorted[i]] = bucket_keys[sorted[i - 1]] AND bucket_names[sorted[i]] = bucket_names[sorted[i - 1]] THEN
            RAISE EXCEPTION 'a bucket of the limit "%" is listed twice', bucket_names[sorted[i]]
              USING ERRCODE = 'invalid_parameter_value', HINT = 'List a bucket once; several items may name it.';
          END IF;
        END LOOP;
      END IF;
      row_exists := row_present;
      IF is_anchored IS NOT NULL THEN
        FOR i IN 1 .. buckets LOOP
          row_present[i] := row_present[i] AND is_anchored[i] IS NOT TRUE;
        END LOOP;
      END IF;

      IF locking THEN
        holds_some := settled IS NOT NULL;
        FOREACH missing_ones IN ARRAY ARRAY[true, false] LOOP
          <<each_bucket>>
          FOR i IN 1 .. buckets LOOP
            b := sorted[i];
            IF is_settled[b] OR is_anchored[b] THEN
              CONTINUE;
            ELSIF chosen_shards[b] IS NOT NULL AND looks_at_all[b] IS NOT TRUE THEN
              CONTINUE WHEN missing_ones;
              bucket := NULL;
              IF spare_balances[b] >= 4 * asked_counts[b] THEN
                SELECT r.*
                INTO bucket
                FROM public.rate_limits AS r
                WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = chosen_shards[b]
                FOR NO KEY UPDATE SKIP LOCKED;
                IF NOT FOUND AND spare_balances[b] >= 32 * asked_counts[b] AND hurried IS NOT TRUE THEN
                  SELECT r.*
                  INTO bucket
                  FROM public.rate_limits AS r
                  WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = chosen_shards[b]
                  FOR NO KEY UPDATE;
                END IF;
              END IF;
              IF bucket.shard IS NOT NULL THEN
                rows[b] := bucket;
                row_present[b] := true;
                row_exists[b] := true;
                is_gathered[b] := true;
                holds_some := true;
                CONTINUE;
              END IF;
              looks_at_all[b] := true;
            ELSE
              CONTINUE WHEN row_exists[b] = missing_ones;
            END IF;
            IF hurried THEN
              nth_shard := 0;
              LOOP
                SELECT r.*
                INTO bucket
                FROM public.rate_limits AS r
                WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = nth_shard
                FOR NO KEY UPDATE SKIP LOCKED;
                IF NOT FOUND THEN
                  RAISE EXCEPTION 'could not serialize access to a bucket'
                    USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
                END IF;
                rows[b] := bucket;
                looks_at_all[b] := looks_at_all[b] OR bucket.shards <> coalesce(bucket_shards[b], 1);
                nth_shard := nth_shard + 1;
                EXIT WHEN looks_at_all[b] IS NOT TRUE OR nth_shard >= bucket.shards;
              END LOOP;
              row_exists[b] := true;
              row_present[b] := true;
              CONTINUE;
            END IF;
            LOOP
              IF NOT row_exists[b] THEN
                INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at)
                VALUES (bucket_names[b], bucket_keys[b], 0, coalesce(bucket_shards[b], 1), 0, 0, 0)
                ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
                is_anchored[b] := FOUND;
                holds_some := holds_some OR FOUND;
                row_exists[b] := true;
                CONTINUE each_bucket WHEN missing_ones OR is_anchored[b];
              END IF;
              SELECT r.*
              INTO bucket
              FROM public.rate_limits AS r
              WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
              FOR NO KEY UPDATE;
              rows[b] := bucket;
              row_exists[b] := FOUND;
              row_present[b] := FOUND;
              EXIT WHEN FOUND;
              IF holds_some THEN
                RAISE EXCEPTION 'could not serialize access to a bucket'
                  USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
              END IF;
            END LOOP;
            holds_some := true;
            IF row_exists[b] AND (looks_at_all[b] OR bucket.shards <> coalesce(bucket_shards[b], 1)) THEN
              looks_at_all[b] := true;
              FOR nth_shard IN 1 .. greatest(bucket.shards, bucket_shards[b], 1) - 1 LOOP
                PERFORM
                FROM public.rate_limits AS r
                WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = nth_shard
                FOR NO KEY UPDATE;
              END LOOP;
            END IF;
          END LOOP;
        END LOOP;
      END IF;

      shares := NULL;
      share_counts := NULL;
      IF bucket_shards IS NOT NULL OR looks_at_all IS NOT NULL THEN
        FOR i IN 1 .. buckets LOOP
          b := sorted[i];
          IF is_settled[b] THEN
            CONTINUE;
          ELSIF looks_at_all[b] THEN
            SELECT array_agg(t.whole ORDER BY t.shard)
            INTO rows_found
            FROM generate_series(0, greatest(bucket_shards[b], 1, (
              SELECT r.shards FROM public.rate_limits AS r WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = 0
            )) - 1) AS s (shard)
            CROSS JOIN LATERAL (
              SELECT r AS whole, r.shard
              FROM public.rate_limits AS r
              WHERE r.name = bucket_names[b] AND r.key = bucket_keys[b] AND r.shard = s.shard
              LIMIT 1
            ) AS t
            WHERE s.shard > 0 OR is_anchored[b] IS NOT TRUE;
            first_shares[b] := coalesce(cardinality(shares), 0) + 1;
            share_counts[b] := coalesce(cardinality(rows_found), 0);
            shares := shares || rows_found;
            row_present[b] := share_counts[b] > 0;
          ELSIF bucket_shards[b] > 1 AND locking IS NOT TRUE THEN
            SELECT array_agg(t.bucket ORDER BY t.in_use), bool_or(t.in_use) AND NOT bool_and(t.in_use)
            INTO rows_found, ok
            FROM unnest(ARRAY[first_shards[b], second_shards[b]]) AS d (shard)
            CROSS JOIN LATERAL (
              SELECT s.bucket, s.in_use
              FROM public.rate_limits_seen AS s
              WHERE s.name = bucket_names[b] AND s.key = bucket_keys[b] AND s.shard = d.shard
              LIMIT 1
            ) AS t;
            prefers_first[b] := ok;
            rows[b] := rows_found[1];
            others[b] := rows_found[2];
            row_present[b] := (rows[b]).shard IS NOT NULL;
            row_exists[b] := row_present[b];
          END IF;
        END LOOP;
      END IF;
    END IF;
    rows_before := rows;
    present_before := row_present;
    asked_counts := NULL;

    clock := public.rate_limit_clock();

    FOR nth IN 1 .. calls LOOP
      times := CASE WHEN call_times IS NULL THEN 1 ELSE call_times[nth] END;
      first_item := last_item + 1;
      last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 1);
      IF is_settled[first_item] THEN
        call_admitted[nth] := times;
        IF call_reserves IS NULL THEN
          call_waits[nth] := NULL;
        END IF;
        FOR item IN first_item .. last_item LOOP
          item_refused[item] := false;
        END LOOP;
        CONTINUE;
      END IF;
      op := coalesce(call_ops[nth], '');
      at := coalesce(call_ats[nth], clock);
      grouped := last_item > first_item;
      refused := false;
      call_waits[nth] := NULL;
      IF grouped THEN
        IF touched THEN
          IF present THEN
            IF kind = 'fixed_window' THEN
              bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
            ELSIF kind = 'sliding_window' THEN
              DECLARE
                newest integer := 0;
                left_at bigint;
                part_of bigint;
              BEGIN
                bucket.idle_at := bucket.ts;
                IF bucket.value = 0 THEN
                  newest := NULL;
                  FOR i IN 1 .. resolution LOOP
                    IF bucket.earlier_counts[i + 3] <> 0 THEN
                      newest := i;
                      EXIT;
                    END IF;
                  END LOOP;
                END IF;
                IF newest IS NOT NULL THEN
                  left_at := sub_interval - newest + resolution + 1;
                  part_of := (left_at % resolution + resolution) % resolution;
                  bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                    + (part_of * period + resolution - 1) / resolution;
                END IF;
              END;
            ELSIF kind = 'token_bucket' THEN
              bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
            END IF;
          END IF;
          rows[in_hand] := bucket;
          row_present[in_hand] := present;
          touched := false;
        END IF;
        in_hand := NULL;
      END IF;
      IF NOT coalesce(times = 1 OR (times > 1 AND op = 'limit' AND NOT grouped AND call_reserves[nth] IS NOT TRUE), false)
      THEN
        RAISE EXCEPTION 'call % cannot be made % times at once', nth, coalesce(times::text, 'NULL')
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Only "limit" of one item, without reserving, can.';
      END IF;
      admitted := 0;

      <<each_item>>
      FOR item IN first_item .. last_item LOOP
        IF grouped THEN
          b := item_buckets[item];
          undo_rows[item] := rows[b];
          undo_present[item] := row_present[b];
          undo_gathered[item] := is_gathered[b];
        END IF;
        count := item_counts[item];
        IF NOT coalesce(count = 0 OR count BETWEEN 1e-100 AND 1e100, false) THEN
          RAISE EXCEPTION 'invalid_count: the count % for the limit "%" is not 0 or a number from 1e-100 to 1e100',
            count, bucket_names[item_buckets[item]]
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for a count of 0 or more.';
        END IF;

        done := op <> 'credit' AND op <> 'reset';
        CONTINUE WHEN widened AND looks_at_all[item_buckets[item]] AND share_counts[item_buckets[item]] IS NULL;
        LOOP
          IF in_hand IS DISTINCT FROM item_buckets[item]
            OR limit_in_hand <> item_limits[item]
            OR moment IS DISTINCT FROM at
          THEN
            IF touched THEN
              IF present THEN
                IF kind = 'fixed_window' THEN
                  bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
                ELSIF kind = 'sliding_window' THEN
                  DECLARE
                    newest integer := 0;
                    left_at bigint;
                    part_of bigint;
                  BEGIN
                    bucket.idle_at := bucket.ts;
                    IF bucket.value = 0 THEN
                      newest := NULL;
                      FOR i IN 1 .. resolution LOOP
                        IF bucket.earlier_counts[i + 3] <> 0 THEN
                          newest := i;
                          EXIT;
                        END IF;
                      END LOOP;
                    END IF;
                    IF newest IS NOT NULL THEN
                      left_at := sub_interval - newest + resolution + 1;
                      part_of := (left_at % resolution + resolution) % resolution;
                      bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                        + (part_of * period + resolution - 1) / resolution;
                    END IF;
                  END;
                ELSIF kind = 'token_bucket' THEN
                  bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
                END IF;
              END IF;
              rows[in_hand] := bucket;
              row_present[in_hand] := present;
              touched := false;
            END IF;
            in_hand := item_buckets[item];
            limit_in_hand := item_limits[item];
            moment := at;
            kind := limit_kinds[limit_in_hand];
            rate := limit_rates[limit_in_hand];
            period := limit_periods[limit_in_hand];
            capacity := coalesce(limit_capacities[limit_in_hand], rate);
            resolution := coalesce(limit_resolutions[limit_in_hand], 1);
            IF NOT coalesce(
              rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000
                AND capacity BETWEEN 0 AND 1e100 AND coalesce(limit_max_reserved[limit_in_hand] BETWEEN 0 AND 1e100, true)
                AND resolution BETWEEN 1 AND 1000 AND coalesce(limit_shards[limit_in_hand], 1) BETWEEN 1 AND 1000
                AND bucket_names[in_hand] IS NOT NULL AND bucket_keys[in_hand] IS NOT NULL,
              false)
            THEN
              RAISE EXCEPTION 'item % names a limit or a bucket that is not listed or not valid', item
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate; indices count from 1.';
            END IF;
            present := row_present[in_hand];
            bucket := rows[in_hand];
            now := CASE WHEN present THEN greatest(moment, bucket.ts) ELSE moment END;
            looks := 1;
            parts := 1;
            pairs := false;
            gathers := false;
            IF bucket_shards IS NOT NULL OR looks_at_all IS NOT NULL OR bucket.shards <> 1 THEN
              IF share_counts[in_hand] IS NULL THEN
                IF bucket_shards[in_hand] > 1 THEN
                  parts := bucket_shards[in_hand];
                  pairs := is_gathered[in_hand] IS NOT TRUE;
                  IF NOT coalesce(
                    present AND bucket.shards = parts AND limit_shards[limit_in_hand] = parts
                      AND (op = 'limit' OR op = 'charge' OR (op = 'check' AND count > 0))
                      AND (NOT pairs OR (others[in_hand]).shards = parts),
                    false)
                  THEN
                    looks_at_all[in_hand] := true;
                    widened := true;
                    in_hand := NULL;
                    touched := false;
                    CONTINUE each_item;
                  END IF;
                  IF pairs THEN
                    looks := 2;
                    now := greatest(now, (others[in_hand]).ts);
                  END IF;
                ELSIF bucket.shards <> 1 THEN
                  looks_at_all[in_hand] := true;
                  widened := true;
                  in_hand := NULL;
                  touched := false;
                  CONTINUE each_item;
                END IF;
              ELSIF share_counts[in_hand] > 0 AND is_gathered[in_hand] IS NOT TRUE THEN
                gathers := true;
                looks := share_counts[in_hand];
                parts := (shares[first_shares[in_hand]]).shards;
                FOR i IN 1 .. looks LOOP
                  now := greatest(now, (shares[first_shares[in_hand] + i - 1]).ts);
                END LOOP;
                may_drain[in_hand] := looks = parts AND looks = coalesce(bucket_shards[in_hand], 1);
              END IF;
              rate := rate / parts;
              capacity := capacity / parts;
            END IF;
            FOR nth_look IN 1 .. looks LOOP
              IF parts > 1 OR gathers THEN
                IF gathers THEN
                  bucket := shares[first_shares[in_hand] + nth_look - 1];
                ELSIF nth_look = 2 THEN
                  bucket := others[in_hand];
                END IF;
                header := bucket.earlier_counts[1:3];
                lack := CASE WHEN bucket.earlier_counts IS NULL THEN capacity - least(bucket.value, capacity) END;
              ELSIF NOT present THEN
                bucket.name := bucket_names[in_hand];
                bucket.key := bucket_keys[in_hand];
                bucket.shard := 0;
                bucket.shards := coalesce(bucket_shards[in_hand], 1);
                IF kind = 'fixed_window' THEN
                  bucket.value := capacity;
                  bucket.ts := NULL;
                  bucket.earlier_counts := NULL;
                ELSIF kind = 'sliding_window' THEN
                  bucket.value := 0;
                  bucket.ts := now;
                  bucket.earlier_counts := NULL;
                ELSIF kind = 'token_bucket' THEN
                  bucket.value := capacity;
                  bucket.ts := now;
                  bucket.earlier_counts := NULL;
                END IF;
              END IF;
              balance := NULL;
              IF kind = 'fixed_window' THEN
                DECLARE
                  phase bigint := limit_starts[limit_in_hand];
                  opened_before bigint;
                BEGIN
                  IF phase IS NULL THEN
                    phase := public.rate_limit_phase(bucket_names[in_hand], bucket_keys[in_hand]);
                  END IF;
                  IF bucket.earlier_counts IS NOT NULL THEN
                    FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                      bucket.value := bucket.value + part;
                    END LOOP;
                    bucket.value := capacity - bucket.value;
                    bucket.earlier_counts := NULL;
                  END IF;
                  opened := now - ((now - phase % period) % period + period) % period;
                  opened_before := bucket.ts - ((bucket.ts - phase % period) % period + period) % period;
                  inflow := coalesce(rate * ((opened - opened_before) / period), 0);
                  bucket.value := least(bucket.value + inflow, capacity);
                  bucket.ts := greatest(bucket.ts, opened);
                  balance := bucket.value;
                END;
              ELSIF kind = 'sliding_window' THEN
                DECLARE
                  phase CONSTANT bigint := coalesce(limit_starts[limit_in_hand] % period, 0);
                  inside_before CONSTANT bigint := ((bucket.ts - phase) % period + period) % period;
                  inside CONSTANT bigint := ((now - phase) % period + period) % period;
                  counts double precision[] := bucket.earlier_counts[4:];
                  steps bigint;
                  used double precision;
                BEGIN
                  IF bucket.earlier_counts IS NULL THEN
                    IF present THEN
                      bucket.value := greatest(rate - bucket.value, 0);
                    END IF;
                    counts := array_fill(0::double precision, ARRAY[resolution]);
                  ELSIF cardinality(counts) <> resolution
                    OR bucket.earlier_counts[1] <> period
                    OR bucket.earlier_counts[2] <> phase
                  THEN
                    FOREACH part IN ARRAY counts LOOP
                      bucket.value := bucket.value + part;
                    END LOOP;
                    counts := array_fill(0::double precision, ARRAY[resolution]);
                  END IF;
                  sub_interval := (now - phase - inside) / period * resolution + inside * resolution / period;
                  steps := least(
                    sub_interval - (bucket.ts - phase - inside_before) / period * resolution - inside_before * resolution / period,
                    resolution + 1);
                  WHILE steps > 0 LOOP
                    counts := bucket.value || counts[1 : resolution - 1];
                    bucket.value := 0;
                    steps := steps - 1;
                  END LOOP;
                  bucket.ts := now;
                  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || counts;
                  gone := (inside * resolution % period)::double precision / period;
                  used := bucket.value + counts[resolution] * (1 - gone);
                  FOR i IN 1 .. resolution - 1 LOOP
                    used := used + counts[i];
                  END LOOP;
                  balance := rate - used;
                END;
              ELSIF kind = 'token_bucket' THEN
                IF bucket.earlier_counts IS NOT NULL THEN
                  FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                    bucket.value := bucket.value + part;
                  END LOOP;
                  bucket.value := capacity - bucket.value;
                  bucket.earlier_counts := NULL;
                END IF;
                inflow :=
                  greatest(now - bucket.ts, 0)::double precision * rate / period
                ;
                bucket.value := least(bucket.value + inflow, capacity);
                bucket.ts := now;
                balance := bucket.value;
              END IF;
              IF balance IS NULL THEN
                RAISE EXCEPTION 'item % has a limit of unknown kind', item
                  USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate.';
              END IF;
              IF parts > 1 OR gathers THEN
                IF NOT gathers AND bucket.earlier_counts[1:3] IS DISTINCT FROM header THEN
                  looks_at_all[in_hand] := true;
                  widened := true;
                  in_hand := NULL;
                  touched := false;
                  CONTINUE each_item;
                END IF;
                IF pairs THEN
                  IF nth_look = 1 THEN
                    kept := bucket;
                    kept_balance := balance;
                  END IF;
                ELSIF gathers THEN
                  IF bucket.earlier_counts[1:3] IS DISTINCT FROM header OR balance < - (1e-9 + 1e-14 * capacity) THEN
                    may_drain[in_hand] := false;
                  END IF;
                  share_balances[first_shares[in_hand] + nth_look - 1] := balance;
                  look_lacks[nth_look] := coalesce(lack, capacity - balance);
                  look_inflows[nth_look] := CASE WHEN lack IS NULL THEN 0 ELSE inflow END;
                  IF nth_look = 1 THEN
                    kept := bucket;
                    sums := bucket.earlier_counts[4:];
                  ELSE
                    kept.value := kept.value + bucket.value;
                    kept.ts := greatest(kept.ts, bucket.ts);
                    FOR i IN 1 .. coalesce(cardinality(sums), 0) LOOP
                      sums[i] := sums[i] + bucket.earlier_counts[i + 3];
                    END LOOP;
                  END IF;
                END IF;
              END IF;
            END LOOP;
            IF pairs THEN
              IF coalesce(
                kept.shard = chosen_shards[in_hand],
                kept_balance >= balance OR (prefers_first[in_hand] AND kept_balance >= count * times)
              )
              THEN
                beyond_rows[in_hand] := (kept_balance + balance) * parts / 2 - kept_balance;
                bucket := kept;
                balance := kept_balance;
              ELSE
                beyond_rows[in_hand] := (kept_balance + balance) * parts / 2 - balance;
              END IF;
              chosen_shards[in_hand] := bucket.shard;
              rows[in_hand] := bucket;
              is_gathered[in_hand] := true;
            ELSIF gathers THEN
              kind := limit_kinds[limit_in_hand];
              rate := limit_rates[limit_in_hand];
              period := limit_periods[limit_in_hand];
              capacity := coalesce(limit_capacities[limit_in_hand], rate);
              resolution := coalesce(limit_resolutions[limit_in_hand], 1);
              total := (
                SELECT sum(u.balance)
                FROM unnest(share_balances[first_shares[in_hand] : first_shares[in_hand] + looks - 1]) AS u (balance)
              );
              bucket := kept;
              bucket.shard := 0;
              bucket.shards := coalesce(bucket_shards[in_hand], 1);
              IF sums IS NULL THEN
                SELECT capacity - greatest(max(g.lacks + g.inflow * (g.rows - parts)), 0)
                INTO balance
                FROM (
                  SELECT
                    f.inflow,
                    sum(f.lack - f.inflow) OVER written_since AS lacks,
                    count(*) OVER written_since AS rows
                  FROM (
                    SELECT u.lack, least(u.inflow, sum(u.lack) OVER ()) AS inflow
                    FROM unnest(look_lacks[1:looks], look_inflows[1:looks]) AS u (lack, inflow)
                  ) AS f
                  WINDOW written_since AS (ORDER BY f.inflow)
                ) AS g;
                bucket.value := balance;
              ELSE
                balance := total;
                bucket.earlier_counts := bucket.earlier_counts[1:2] || rate || sums;
              END IF;
              may_drain[in_hand] := may_drain[in_hand] AND balance <= total + 1e-9 + 1e-14 * capacity;
              parts := 1;
              rows[in_hand] := bucket;
              is_gathered[in_hand] := true;
              gathered_rows[in_hand] := bucket;
              gathered_limits[in_hand] := limit_in_hand;
              gathered_ats[in_hand] := now;
              gathered_totals[in_hand] := total;
            END IF;
            tolerance := 1e-9 + 1e-14 * greatest(capacity, abs(balance));
          END IF;
          EXIT WHEN done;
          IF present THEN
            IF op = 'reset' THEN
              present := false;
            ELSE
              IF kind = 'fixed_window' THEN
                bucket.value := least(bucket.value + count, capacity);
              ELSIF kind = 'sliding_window' THEN
                DECLARE
                  counts double precision[] := bucket.earlier_counts;
                  back double precision := least(count, bucket.value);
                  rest double precision := count - back;
                BEGIN
                  bucket.value := bucket.value - back;
                  FOR i IN 1 .. resolution LOOP
                    EXIT WHEN rest <= 0;
                    back := least(rest, counts[i + 3]);
                    counts[i + 3] := counts[i + 3] - back;
                    rest := rest - back;
                  END LOOP;
                  bucket.earlier_counts := counts;
                END;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := least(bucket.value + count, capacity);
              END IF;
            END IF;
            row_changed[in_hand] := true;
            pending := true;
            touched := true;
            moment := NULL;
          END IF;
          done := true;
        END LOOP;

        after := balance;
        ok := true;
        wait := NULL;
        IF op = 'limit' OR op = 'check' THEN
          after := balance - count;
          least_balance := 0;
          slack := tolerance;
          IF call_reserves[nth] THEN
            IF kind = 'sliding_window' THEN
              RAISE EXCEPTION 'reserve_unsupported: the sliding window "%" cannot reserve', bucket_names[in_hand]
                USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a token bucket or a fixed window.';
            END IF;
            IF parts = 1 THEN
              least_balance := - limit_max_reserved[limit_in_hand];
              slack := tolerance + 1e-14 * coalesce(- least_balance, 0);
            END IF;
          END IF;
          IF parts > 1 THEN
            IF balance - count * times < - tolerance THEN
              looks_at_all[in_hand] := true;
              widened := true;
              in_hand := NULL;
              touched := false;
              CONTINUE each_item;
            END IF;
          ELSIF count > capacity - least_balance + slack THEN
            RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
              count, bucket_names[in_hand], capacity - least_balance
              USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for less at once, or raise the capacity.';
          END IF;
          IF times > 1 THEN
            admitted := CASE WHEN count = 0 THEN times - 1 ELSE floor(least((balance + slack) / count, times - 1)) END;
            IF admitted > 0 AND balance >= - slack THEN
              one := count;
              count := one * admitted;
              IF kind = 'fixed_window' THEN
                bucket.value := bucket.value - count;
              ELSIF kind = 'sliding_window' THEN
                bucket.value := bucket.value + count;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := bucket.value - count;
              END IF;
              balance := balance - count;
              count := one;
              after := balance - count;
              present := true;
              touched := true;
              row_changed[in_hand] := true;
              pending := true;
            ELSE
              admitted := 0;
            END IF;
          END IF;
          ok := least_balance IS NULL OR after >= least_balance - slack;
          IF NOT ok OR after < - tolerance THEN
            missing := CASE WHEN ok THEN - after ELSE least_balance - after END;
            IF kind = 'fixed_window' THEN
              wait := opened - now + greatest(ceil((missing - tolerance) / rate), 1) * period;
            ELSIF kind = 'sliding_window' THEN
              DECLARE
                room CONSTANT double precision := rate - balance - missing;
                whole double precision := bucket.value;
                counts CONSTANT double precision[] := bucket.earlier_counts[4:];
                leaving double precision;
              BEGIN
                FOR i IN 1 .. resolution - 1 LOOP
                  whole := whole + counts[i];
                END LOOP;
                FOR j IN 0 .. resolution LOOP
                  leaving := CASE WHEN j < resolution THEN counts[resolution - j] ELSE bucket.value END;
                  IF j = resolution THEN
                    whole := 0;
                  END IF;
                  IF whole <= room + tolerance THEN
                    IF leaving > 0 THEN
                      wait := (j + greatest(least(1 - (room - whole) / leaving, 1), 0) - gone) * period / resolution;
                      wait := ceil(wait - least(0.001, tolerance / 2 * period / resolution / leaving));
                    ELSE
                      wait := ceil((j - gone) * period / resolution - 0.001);
                    END IF;
                    EXIT;
                  END IF;
                  IF j + 1 < resolution THEN
                    whole := whole - counts[resolution - j - 1];
                  ELSE
                    whole := 0;
                  END IF;
                END LOOP;
              END;
            ELSIF kind = 'token_bucket' THEN
              wait := ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate));
            END IF;
            wait := least(wait, 1e18) + (now - moment);
            IF ok = NOT refused THEN
              call_waits[nth] := greatest(call_waits[nth], wait::bigint);
            ELSIF NOT ok THEN
              call_waits[nth] := wait::bigint;
            END IF;
          END IF;
          refused := refused OR NOT ok;
        ELSIF op = 'charge' THEN
          after := balance - count;
          IF parts > 1 AND after < - tolerance THEN
            looks_at_all[in_hand] := true;
            widened := true;
            in_hand := NULL;
            touched := false;
            CONTINUE each_item;
          END IF;
        ELSIF op <> 'credit' AND op <> 'reset' THEN
          RAISE EXCEPTION 'unknown operation "%"', op
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use limit, check, credit, charge or reset.';
        END IF;

        item_refused[item] := NOT ok;
        item_values[item] := CASE
          WHEN NOT ok THEN balance
          WHEN parts > 1 THEN after + beyond_rows[in_hand]
          WHEN abs(after) <= tolerance THEN 0
          ELSE after
        END;
        IF grouped THEN
          undo_balance[item] := CASE WHEN parts > 1 THEN balance + beyond_rows[in_hand] ELSE balance END;
        END IF;
        IF op = 'charge' OR (op = 'limit' AND (ok OR grouped)) THEN
          IF kind = 'fixed_window' THEN
            bucket.value := bucket.value - count;
          ELSIF kind = 'sliding_window' THEN
            bucket.value := bucket.value + count;
          ELSIF kind = 'token_bucket' THEN
            bucket.value := bucket.value - count;
          END IF;
          balance := after;
          present := true;
          touched := true;
          IF NOT grouped THEN
            row_changed[in_hand] := true;
            pending := true;
          END IF;
        END IF;
        IF parts > 1 THEN
          spare_balances[in_hand] := after;
          asked_counts[in_hand] := coalesce(asked_counts[in_hand], 0) + count * times;
        END IF;
      END LOOP;

      IF grouped AND (refused OR op = 'check') THEN
        in_hand := NULL;
        touched := false;
        FOR item IN REVERSE last_item .. first_item LOOP
          b := item_buckets[item];
          rows[b] := undo_rows[item];
          row_present[b] := undo_present[item];
          is_gathered[b] := undo_gathered[item];
          IF refused THEN
            item_values[item] := undo_balance[item];
          END IF;
        END LOOP;
      END IF;
      call_admitted[nth] := CASE WHEN times = 1 AND NOT refused THEN 1 ELSE admitted + (NOT refused)::integer END;
      IF grouped THEN
        FOR item IN first_item .. last_item LOOP
          IF (op = 'limit' AND NOT refused) OR op = 'charge' THEN
            row_changed[item_buckets[item]] := true;
            pending := true;
          END IF;
        END LOOP;
      END IF;
    END LOOP;
    IF touched THEN
      IF present THEN
        IF kind = 'fixed_window' THEN
          bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
        ELSIF kind = 'sliding_window' THEN
          DECLARE
            newest integer := 0;
            left_at bigint;
            part_of bigint;
          BEGIN
            bucket.idle_at := bucket.ts;
            IF bucket.value = 0 THEN
              newest := NULL;
              FOR i IN 1 .. resolution LOOP
                IF bucket.earlier_counts[i + 3] <> 0 THEN
                  newest := i;
                  EXIT;
                END IF;
              END LOOP;
            END IF;
            IF newest IS NOT NULL THEN
              left_at := sub_interval - newest + resolution + 1;
              part_of := (left_at % resolution + resolution) % resolution;
              bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                + (part_of * period + resolution - 1) / resolution;
            END IF;
          END;
        ELSIF kind = 'token_bucket' THEN
          bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
        END IF;
      END IF;
      rows[in_hand] := bucket;
      row_present[in_hand] := present;
      touched := false;
    END IF;
    IF last_item <> items THEN
      RAISE EXCEPTION 'the calls have % items, and % are listed', last_item, items
        USING ERRCODE = 'invalid_parameter_value', HINT = 'The call_sizes add up to the items.';
    END IF;

    IF widened THEN
      IF again OR hurried THEN
        RAISE EXCEPTION 'could not serialize access to a bucket'
          USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
      END IF;
      hurried := locking;
      pending := NULL;
      row_changed := NULL;
      in_hand := NULL;
      last_item := 0;
      CONTINUE;
    END IF;

    IF pending AND locking IS NOT TRUE AND locks_first THEN
      locking := true;
      hurried := holds_rows;
      pending := NULL;
      row_changed := NULL;
      in_hand := NULL;
      last_item := 0;
      CONTINUE;
    END IF;

    FOR i IN 1 .. buckets LOOP
      b := sorted[i];
      IF share_counts[b] IS NOT NULL THEN
        shards_there := CASE
          WHEN is_removed[b] THEN '{}'
          WHEN is_split[b] THEN ARRAY(SELECT generate_series(0, coalesce(bucket_shards[b], 1) - 1))
          ELSE ARRAY(
            SELECT u.shard
            FROM unnest(shares[first_shares[b] : first_shares[b] + share_counts[b] - 1]) AS u
          ) || CASE WHEN is_anchored[b] THEN ARRAY[0] ELSE '{}' END
        END;
        shards_gone := CASE WHEN NOT row_present[b] THEN shards_there WHEN is_anchored[b] THEN ARRAY[0] ELSE '{}' END;
        is_removed[b] := NOT row_present[b];
        IF row_present[b] AND row_changed[b] THEN
          bucket := rows[b];
          kept := gathered_rows[b];
          total := CASE WHEN bucket.earlier_counts IS NULL THEN kept.value - bucket.value ELSE bucket.value - kept.value END;
          parts := bucket.shards;
          shards_gone := ARRAY(SELECT u.shard FROM unnest(shards_there) AS u (shard) WHERE u.shard >= parts);
          IF may_drain[b] AND is_split[b] IS NOT TRUE AND is_removed[b] IS NOT TRUE
            AND total BETWEEN 0 AND gathered_totals[b]
            AND bucket.ts = kept.ts AND bucket.earlier_counts IS NOT DISTINCT FROM kept.earlier_counts
          THEN
            limit_in_hand := gathered_limits[b];
            kind := limit_kinds[limit_in_hand];
            rate := limit_rates[limit_in_hand];
            period := limit_periods[limit_in_hand];
            capacity := coalesce(limit_capacities[limit_in_hand], rate);
            resolution := coalesce(limit_resolutions[limit_in_hand], 1);
            rate := rate / parts;
            capacity := capacity / parts;
            now := gathered_ats[b];
            in_hand := b;
            drained := NULL;
            FOR nth_share IN
              SELECT first_shares[b] + u.nth - 1
              FROM unnest(share_balances[first_shares[b] : first_shares[b] + parts - 1]) WITH ORDINALITY AS u (balance, nth)
              ORDER BY was_drained[first_shares[b] + u.nth - 1] DESC NULLS LAST, u.balance DESC
            LOOP
              EXIT WHEN total <= 0;
              IF again AND was_drained[nth_share] IS NOT TRUE THEN
                RAISE EXCEPTION 'could not serialize access to a bucket'
                  USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
              END IF;
              was_drained[nth_share] := true;
              count := least(total, greatest(share_balances[nth_share], 0));
              total := total - count;
              bucket := shares[nth_share];
              present := true;
              IF kind = 'fixed_window' THEN
                DECLARE
                  phase bigint := limit_starts[limit_in_hand];
                  opened_before bigint;
                BEGIN
                  IF phase IS NULL THEN
                    phase := public.rate_limit_phase(bucket_names[in_hand], bucket_keys[in_hand]);
                  END IF;
                  IF bucket.earlier_counts IS NOT NULL THEN
                    FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                      bucket.value := bucket.value + part;
                    END LOOP;
                    bucket.value := capacity - bucket.value;
                    bucket.earlier_counts := NULL;
                  END IF;
                  opened := now - ((now - phase % period) % period + period) % period;
                  opened_before := bucket.ts - ((bucket.ts - phase % period) % period + period) % period;
                  inflow := coalesce(rate * ((opened - opened_before) / period), 0);
                  bucket.value := least(bucket.value + inflow, capacity);
                  bucket.ts := greatest(bucket.ts, opened);
                  balance := bucket.value;
                END;
              ELSIF kind = 'sliding_window' THEN
                DECLARE
                  phase CONSTANT bigint := coalesce(limit_starts[limit_in_hand] % period, 0);
                  inside_before CONSTANT bigint := ((bucket.ts - phase) % period + period) % period;
                  inside CONSTANT bigint := ((now - phase) % period + period) % period;
                  counts double precision[] := bucket.earlier_counts[4:];
                  steps bigint;
                  used double precision;
                BEGIN
                  IF bucket.earlier_counts IS NULL THEN
                    IF present THEN
                      bucket.value := greatest(rate - bucket.value, 0);
                    END IF;
                    counts := array_fill(0::double precision, ARRAY[resolution]);
                  ELSIF cardinality(counts) <> resolution
                    OR bucket.earlier_counts[1] <> period
                    OR bucket.earlier_counts[2] <> phase
                  THEN
                    FOREACH part IN ARRAY counts LOOP
                      bucket.value := bucket.value + part;
                    END LOOP;
                    counts := array_fill(0::double precision, ARRAY[resolution]);
                  END IF;
                  sub_interval := (now - phase - inside) / period * resolution + inside * resolution / period;
                  steps := least(
                    sub_interval - (bucket.ts - phase - inside_before) / period * resolution - inside_before * resolution / period,
                    resolution + 1);
                  WHILE steps > 0 LOOP
                    counts := bucket.value || counts[1 : resolution - 1];
                    bucket.value := 0;
                    steps := steps - 1;
                  END LOOP;
                  bucket.ts := now;
                  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || counts;
                  gone := (inside * resolution % period)::double precision / period;
                  used := bucket.value + counts[resolution] * (1 - gone);
                  FOR i IN 1 .. resolution - 1 LOOP
                    used := used + counts[i];
                  END LOOP;
                  balance := rate - used;
                END;
              ELSIF kind = 'token_bucket' THEN
                IF bucket.earlier_counts IS NOT NULL THEN
                  FOREACH part IN ARRAY bucket.earlier_counts[4:] LOOP
                    bucket.value := bucket.value + part;
                  END LOOP;
                  bucket.value := capacity - bucket.value;
                  bucket.earlier_counts := NULL;
                END IF;
                inflow :=
                  greatest(now - bucket.ts, 0)::double precision * rate / period
                ;
                bucket.value := least(bucket.value + inflow, capacity);
                bucket.ts := now;
                balance := bucket.value;
              END IF;
              IF kind = 'fixed_window' THEN
                bucket.value := bucket.value - count;
              ELSIF kind = 'sliding_window' THEN
                bucket.value := bucket.value + count;
              ELSIF kind = 'token_bucket' THEN
                bucket.value := bucket.value - count;
              END IF;
              IF kind = 'fixed_window' THEN
                bucket.idle_at := opened + least(greatest(ceil((capacity - bucket.value) / rate - 1e-9), 0) * period, 1e18)::bigint;
              ELSIF kind = 'sliding_window' THEN
                DECLARE
                  newest integer := 0;
                  left_at bigint;
                  part_of bigint;
                BEGIN
                  bucket.idle_at := bucket.ts;
                  IF bucket.value = 0 THEN
                    newest := NULL;
                    FOR i IN 1 .. resolution LOOP
                      IF bucket.earlier_counts[i + 3] <> 0 THEN
                        newest := i;
                        EXIT;
                      END IF;
                    END LOOP;
                  END IF;
                  IF newest IS NOT NULL THEN
                    left_at := sub_interval - newest + resolution + 1;
                    part_of := (left_at % resolution + resolution) % resolution;
                    bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
                      + (part_of * period + resolution - 1) / resolution;
                  END IF;
                END;
              ELSIF kind = 'token_bucket' THEN
                bucket.idle_at := bucket.ts + least(greatest(ceil((capacity - bucket.value) * period / rate), 0), 1e18)::bigint;
              END IF;
              drained := drained || bucket;
            END LOOP;
            to_update := to_update || ARRAY(SELECT u FROM unnest(drained) AS u ORDER BY u.shard);
          ELSE
            IF again AND is_split[b] IS NOT TRUE AND is_removed[b] IS NOT TRUE THEN
              RAISE EXCEPTION 'could not serialize access to a bucket'
                USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
            END IF;
            is_split[b] := true;
            bucket.value := bucket.value / parts;
            IF bucket.earlier_counts IS NOT NULL THEN
              bucket.earlier_counts := bucket.earlier_counts[1:2] || ARRAY(
                SELECT u.count / parts
                FROM unnest(bucket.earlier_counts[3:]) WITH ORDINALITY AS u (count, nth)
                ORDER BY u.nth
              );
            END IF;
            FOR nth_shard IN 0 .. parts - 1 LOOP
              bucket.shard := nth_shard;
              IF nth_shard = ANY (shards_there) THEN
                to_update := to_update || bucket;
              ELSIF nth_shard = 0 THEN
                to_insert := to_insert || bucket;
              ELSE
                to_insert_last := to_insert_last || bucket;
              END IF;
            END LOOP;
          END IF;
        END IF;
        FOREACH nth_shard IN ARRAY shards_gone LOOP
          bucket.name := bucket_names[b];
          bucket.key := bucket_keys[b];
          bucket.shard := nth_shard;
          to_delete := to_delete || bucket;
        END LOOP;
      ELSIF row_present[b] THEN
        IF NOT row_exists[b] THEN
          to_insert := to_insert || rows[b];
        ELSIF row_changed[b] THEN
          to_update := to_update || rows[b];
        END IF;
      ELSIF row_exists[b] THEN
        bucket.name := bucket_names[b];
        bucket.key := bucket_keys[b];
        bucket.shard := 0;
        to_delete := to_delete || bucket;
      END IF;
    END LOOP;
    IF to_insert IS NOT NULL THEN
      INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at, earlier_counts)
      SELECT w.name, w.key, w.shard, w.shards, w.value, w.ts, w.idle_at, w.earlier_counts
      FROM unnest((SELECT to_insert)) AS w
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
      GET DIAGNOSTICS written = ROW_COUNT;
      missed := cardinality(to_insert) - written;
    END IF;
    IF to_delete IS NOT NULL AND locking IS NOT TRUE THEN
      FOR bucket IN
        SELECT u.*
        FROM unnest(to_update || to_delete) AS u
        ORDER BY u.name COLLATE "C", u.key COLLATE "C", u.shard
      LOOP
        PERFORM
        FROM public.rate_limits AS r
        WHERE r.name = bucket.name AND r.key = bucket.key AND r.shard = bucket.shard
        FOR UPDATE;
      END LOOP;
    END IF;
    IF to_update IS NOT NULL THEN
      UPDATE public.rate_limits AS r
      SET
        shards = w.shards,
        value = w.value,
        ts = w.ts,
        idle_at = w.idle_at,
        earlier_counts = w.earlier_counts
      FROM unnest((SELECT to_update)) AS w
      WHERE r.name = ANY (ARRAY[w.name]) AND r.key = w.key AND r.shard = w.shard;
      GET DIAGNOSTICS written = ROW_COUNT;
      missed := missed + cardinality(to_update) - written;
    END IF;
    FOR i IN 1 .. coalesce(cardinality(to_delete), 0) LOOP
      bucket := to_delete[i];
      DELETE FROM public.rate_limits AS r
      WHERE r.name = bucket.name AND r.key = bucket.key AND r.shard = bucket.shard;
      missed := missed + CASE WHEN FOUND THEN 0 ELSE 1 END;
    END LOOP;
    IF to_insert_last IS NOT NULL THEN
      INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at, earlier_counts)
      SELECT w.name, w.key, w.shard, w.shards, w.value, w.ts, w.idle_at, w.earlier_counts
      FROM unnest((SELECT to_insert_last)) AS w
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
      GET DIAGNOSTICS written = ROW_COUNT;
      missed := missed + cardinality(to_insert_last) - written;
    END IF;
    IF missed > 0 THEN
      RAISE EXCEPTION 'could not serialize access to % of % buckets', missed, buckets
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;

    EXIT WHEN locking OR again OR pending IS NOT TRUE OR call_ats IS NOT NULL
      OR public.rate_limit_clock() - clock <= 1000 + 50 * (buckets + coalesce(cardinality(shares), 0));
    again := true;
    row_exists := row_present;
    rows := rows_before;
    row_present := present_before;
    to_update := NULL;
    to_insert := NULL;
    to_insert_last := NULL;
    to_delete := NULL;
    missed := 0;
    in_hand := NULL;
    last_item := 0;
  END LOOP;
  IF settled IS NOT NULL THEN
    IF public.rate_limit_clock() - settled_at > 1000 + 50 * buckets THEN
      now := public.rate_limit_clock();
      WITH updated AS (
        UPDATE public.rate_limits AS bucket
        SET
          value = least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity - amount),
          ts = greatest(now, bucket.ts),
          idle_at = greatest(now, bucket.ts) + ceil((capacity - least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity - amount)) * period / rate)::bigint
        FROM (
          SELECT
            a.*,
            kind = 'token_bucket' AND times >= 1
            AND (first_short_name IS NULL OR (a.name COLLATE "C", a.key COLLATE "C") < (first_short_name, first_short_key)) AND
            rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
            AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
            AND coalesce(a.max_reserved BETWEEN 0 AND 1e100, true)
            AS is_plain
          FROM (
            SELECT
              l.*,
              CASE WHEN l.shards = 1 THEN (0 * l.nth)::integer ELSE chosen_shards[l.nth] END AS shard,
              1e-9 + 1e-14 * l.capacity AS tolerance,
              CASE
                WHEN l.reserves
                THEN
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
                limit_periods[i.nth_limit] AS period,
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
                FROM unnest((SELECT bucket_names), bucket_keys, item_limits, item_counts, call_times, call_reserves)
                  WITH ORDINALITY AS u (name, key, nth_limit, count, times, reserves, nth)
                CROSS JOIN LATERAL (SELECT CASE WHEN item_limits IS NULL THEN 1 ELSE u.nth_limit END AS nth_limit) AS n
                OFFSET 0
              ) AS i
              OFFSET 0
            ) AS l
          ) AS a
          ORDER BY a.name COLLATE "C", a.key COLLATE "C"
        ) AS asked
        WHERE bucket.name = ANY (ARRAY[asked.name]) AND bucket.key = asked.key AND bucket.shard = asked.shard
          AND asked.nth = ANY (settled)
        RETURNING
          asked.nth,
          CASE
            WHEN asked.shards > 1 THEN greatest(pair_balances[asked.nth] * asked.shards / 2 - amount, bucket.value)
            WHEN abs(bucket.value) <= asked.tolerance THEN 0
            ELSE bucket.value
          END AS left_over,
          CASE
            WHEN asked.reserves AND bucket.value < - asked.tolerance
            THEN (
              SELECT
                least(
                  ceil(
                    - left_over * period / rate
                    - least(0.001, (1e-9 + 1e-14 * greatest(capacity, abs(left_over + amount))) / 2 * period / rate)),
                  1e18
                )::bigint + (left_at - now)
              FROM (SELECT bucket.value AS left_over, bucket.ts AS left_at) AS b
            )
          END AS wait
      )
      SELECT array_agg(u.nth), array_agg(u.left_over), array_agg(u.wait) INTO settled, settled_values, settled_waits
      FROM updated AS u;
    END IF;
    FOR i IN 1 .. cardinality(settled) LOOP
      item_values[settled[i]] := settled_values[i];
      IF call_reserves IS NOT NULL THEN
        call_waits[settled[i]] := settled_waits[i];
      END IF;
    END LOOP;
    IF is_done AND call_reserves IS NOT NULL THEN
      call_waits[buckets] := call_waits[buckets];
    END IF;
  END IF;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_take(
  name text,
  key text,
  rate double precision,
  period double precision,
  capacity double precision,
  count double precision,
  times integer,
  shards integer,
  reserves boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL
)
RETURNS double precision[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
  now bigint := public.rate_limit_clock();
  rate CONSTANT double precision := rate_limit_take.rate / nullif(shards, 0);
  capacity CONSTANT double precision := rate_limit_take.capacity / nullif(shards, 0);
  amount CONSTANT double precision := count * times;
  tolerance CONSTANT double precision := 1e-9 + 1e-14 * capacity;
  needed CONSTANT double precision :=
    CASE
      WHEN reserves
      THEN
        greatest(
          amount - (1e-9 + 1e-14 * capacity) - max_reserved * (1 + 1e-14),
          capacity + amount - 1e18 * rate / period)
      ELSE amount - tolerance
    END;
  chosen integer := 0;
  held double precision;
  of_both double precision;
  locks_first boolean := false;
  draws integer := 0;
  holds_row boolean := false;
  left_over double precision;
  left_at bigint;
  waited bigint;
  decided record;
BEGIN
  IF times >= 1 AND shards BETWEEN 1 AND 1000 AND (NOT reserves OR (times = 1 AND shards = 1))
    AND coalesce(max_reserved BETWEEN 0 AND 1e100, true) AND
    rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100
    AND (amount = 0 OR amount >= 1e-100) AND needed <= capacity AND (capacity + amount) * period / rate <= 9e18
  THEN
    IF shards > 1 THEN
      locks_first := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
      LOOP
        SELECT p.*
        INTO chosen, held, of_both
        FROM (
          SELECT
            rate_limit_take.name AS name,
            rate_limit_take.key AS key,
            rate_limit_take.shards AS shards,
            floor(random() * shards)::integer AS first,
            1 + floor(random() * (shards - 1))::integer AS step
          OFFSET 0
        ) AS a
        CROSS JOIN LATERAL (
          SELECT f.shard, f.balance, sum(f.balance) OVER () AS of_both
          FROM (
            SELECT
              bucket.shard,
              bucket.in_use,
              least(
                bucket.value +
                greatest(now - bucket.ts, 0)::double precision * rate / period
                , capacity) AS balance
            FROM unnest(ARRAY[first, (first + step) % a.shards]) AS d (shard)
            CROSS JOIN LATERAL (
              SELECT (s.bucket).*, s.in_use
              FROM public.rate_limits_seen AS s
              WHERE s.name = a.name AND s.key = a.key AND s.shard = d.shard
              LIMIT 1
            ) AS bucket
            WHERE bucket.shards = a.shards AND bucket.earlier_counts IS NULL
          ) AS f
          ORDER BY f.balance >= amount DESC, f.in_use, f.balance DESC
          LIMIT 1
        ) AS p;
        EXIT WHEN NOT locks_first OR chosen IS NULL;
        IF held < 5 * amount THEN
          chosen := NULL;
          EXIT;
        END IF;
        PERFORM
        FROM public.rate_limits AS bucket
        WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = chosen
        FOR NO KEY UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        draws := draws + 1;
        IF draws = 4 THEN
          chosen := CASE WHEN held >= 33 * amount THEN chosen END;
          EXIT;
        END IF;
      END LOOP;
    END IF;
    UPDATE public.rate_limits AS bucket
    SET
      value = least(
        bucket.value +
        greatest(now - bucket.ts, 0)::double precision * rate / period
        , capacity) - amount,
      ts = greatest(now, bucket.ts),
      idle_at = greatest(now, bucket.ts) + ceil((capacity + amount - least(
        bucket.value +
        greatest(now - bucket.ts, 0)::double precision * rate / period
        , capacity)) * period / rate)::bigint
    WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = chosen
      AND bucket.shards = rate_limit_take.shards AND bucket.earlier_counts IS NULL
      AND
      bucket.value +
      greatest(now - bucket.ts, 0)::double precision * rate / period
      >= needed
    RETURNING bucket.value, bucket.ts INTO left_over, left_at;
    IF FOUND THEN
      waited := public.rate_limit_clock() - now;
      IF waited > 1000 THEN
        now := now + waited;
        UPDATE public.rate_limits AS bucket
        SET
          value = least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity - amount),
          ts = greatest(now, bucket.ts),
          idle_at = greatest(now, bucket.ts) + ceil((capacity - least(
            bucket.value +
            greatest(now - bucket.ts, 0)::double precision * rate / period
            , capacity - amount)) * period / rate)::bigint
        WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = chosen
        RETURNING bucket.value, bucket.ts INTO left_over, left_at;
      END IF;
      RETURN ARRAY[
        times,
        CASE
          WHEN left_over < - tolerance
          THEN
            least(
              ceil(
                - left_over * period / rate
                - least(0.001, (1e-9 + 1e-14 * greatest(capacity, abs(left_over + amount))) / 2 * period / rate)),
              1e18
            )::bigint + (left_at - now)
        END,
        CASE
          WHEN shards > 1 THEN greatest(of_both * shards / 2 - amount, left_over)
          WHEN abs(left_over) <= tolerance THEN 0
          ELSE left_over
        END,
        waited
      ];
    END IF;
    holds_row := locks_first AND chosen IS NOT NULL;
  END IF;
  SELECT d.*
  INTO decided
  FROM public.rate_limit_decide(
    ARRAY['token_bucket'], ARRAY[rate_limit_take.rate], ARRAY[period::bigint], ARRAY[rate_limit_take.capacity],
    ARRAY[max_reserved], NULL, NULL, CASE WHEN shards <> 1 THEN ARRAY[shards] END, ARRAY[rate_limit_take.name], ARRAY[rate_limit_take.key],
    ARRAY[1], NULL, ARRAY[count], NULL, CASE WHEN reserves THEN ARRAY[true] END, NULL,
    ARRAY[times], NULL, holds_row
  ) AS d;
  RETURN ARRAY[decided.call_admitted[1], decided.call_waits[1], decided.item_values[1], NULL];
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_held(bucket_names text[], bucket_keys text[])
RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_indexscan = on
SET jit = off
AS $function$
DECLARE
  held boolean[];
  last_shard integer;
BEGIN
  FOR nth IN 1 .. coalesce(cardinality(bucket_names), 0) LOOP
    SELECT r.shards - 1
    INTO last_shard
    FROM public.rate_limits AS r
    WHERE r.name = bucket_names[nth] AND r.key = bucket_keys[nth] AND r.shard = 0;
    held[nth] := CASE WHEN FOUND THEN false END;
    FOR nth_shard IN 0 .. coalesce(last_shard, -1) LOOP
      PERFORM
      FROM public.rate_limits AS r
      WHERE r.name = bucket_names[nth] AND r.key = bucket_keys[nth] AND r.shard = nth_shard
      FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND THEN
        held[nth] := true;
        EXIT;
      END IF;
    END LOOP;
  END LOOP;
  RETURN held;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_single(
  op text,
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision,
  count double precision,
  reserve boolean,
  max_reserved double precision,
  start interval,
  resolution integer,
  shards integer,
  at timestamp with time zone,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
BEGIN
  IF coalesce(octet_length(name) NOT BETWEEN 1 AND 255, true) THEN
    RAISE EXCEPTION 'invalid_name: a limit''s name has 1 to 255 bytes, not %', coalesce(octet_length(name)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the limit a short name.';
  END IF;
  IF coalesce(octet_length(key) > 1024, true) THEN
    RAISE EXCEPTION 'invalid_key: a key has at most 1024 bytes, not %', coalesce(octet_length(key)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten or hash the key; the empty key is the global bucket.';
  END IF;
  IF NOT coalesce(abs(extract(epoch FROM period)) < 1e12, false) OR NOT abs(extract(epoch FROM start)) < 1e12 THEN
    RAISE EXCEPTION 'invalid_limit: the period is not between 1 microsecond and 36525 days, or start is out of reach'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the period as an interval, like ''1 minute''.';
  END IF;
  IF at NOT BETWEEN timestamptz '1800-01-01 00:00:00Z' AND timestamptz '2200-01-01 00:00:00Z' THEN
    RAISE EXCEPTION 'invalid_limit: the clock % is not between the years 1800 and 2199', at
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
  PERFORM public.rate_limit_validate(
    kind,
    rate,
    (extract(epoch FROM period) * 1000000)::bigint,
    capacity,
    max_reserved,
    (extract(epoch FROM start) * 1000000)::bigint,
    resolution,
    shards
  );
  SELECT
    d.call_admitted IS NULL OR d.call_admitted[1] = 1,
    d.call_waits[1] * interval '1 microsecond',
    d.item_values[1]
  INTO ok, retry_after, value
  FROM public.rate_limit_decide(
    ARRAY[kind],
    ARRAY[rate],
    ARRAY[(extract(epoch FROM period) * 1000000)::bigint],
    ARRAY[capacity],
    ARRAY[max_reserved],
    ARRAY[(extract(epoch FROM start) * 1000000)::bigint],
    ARRAY[resolution],
    CASE WHEN shards <> 1 THEN ARRAY[shards] END,
    ARRAY[name],
    ARRAY[key],
    NULL,
    NULL,
    ARRAY[count],
    CASE WHEN op <> 'limit' THEN ARRAY[op] END,
    CASE WHEN reserve THEN ARRAY[reserve] END,
    NULL,
    NULL,
    CASE WHEN at IS NOT NULL THEN ARRAY[(extract(epoch FROM at) * 1000000)::bigint] END
  ) AS d;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit(
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1,
  reserve boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL,
  resolution integer DEFAULT NULL,
  shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.value
  FROM public.rate_limit_single('limit', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_check(
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1,
  reserve boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL,
  resolution integer DEFAULT NULL,
  shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
  SELECT s.ok, s.retry_after, s.value
  FROM public.rate_limit_single('check', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_enforce(
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1,
  reserve boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL,
  resolution integer DEFAULT NULL,
  shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL
)
RETURNS interval
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
DECLARE
  decision record;
BEGIN
  SELECT s.ok, s.retry_after
  INTO decision
  FROM public.rate_limit_single('limit', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s;
  IF NOT decision.ok THEN
    RAISE EXCEPTION 'rate limit "%" exceeded', name
      USING
        ERRCODE = 'RL429',
        DETAIL = format('Retry after %s seconds.', extract(epoch FROM decision.retry_after)::numeric(30, 6)),
        HINT = 'Wait, then try again.';
  END IF;
  RETURN decision.retry_after;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_reset(name text, key text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
DECLARE
  gone bigint;
  shards integer;
BEGIN
  IF name IS NULL OR key IS NULL THEN
    RAISE EXCEPTION 'invalid_key: rate_limit_reset(name, key) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use rate_limit_reset(name) to forget every key of a limit.';
  END IF;
  DELETE FROM public.rate_limits AS r
  WHERE r.name = rate_limit_reset.name AND r.key = rate_limit_reset.key AND r.shard = 0
  RETURNING r.shards INTO shards;
  gone := FOUND::integer;
  FOR nth_shard IN 1 .. coalesce(shards, 1) - 1 LOOP
    DELETE FROM public.rate_limits AS r
    WHERE r.name = rate_limit_reset.name AND r.key = rate_limit_reset.key AND r.shard = nth_shard;
    gone := gone + FOUND::integer;
  END LOOP;
  RETURN gone;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_reset(name text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
DECLARE
  gone bigint;
  left_over bigint;
BEGIN
  IF name IS NULL THEN
    RAISE EXCEPTION 'invalid_name: rate_limit_reset(name) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Name the limit whose keys are to be forgotten.';
  END IF;
  WITH doomed AS (
    SELECT r.name, r.key, r.shard
    FROM public.rate_limits AS r
    WHERE r.name = rate_limit_reset.name
    ORDER BY r.name, r.key, r.shard
    FOR UPDATE
  )
  DELETE FROM public.rate_limits AS r
  USING doomed AS d
  WHERE r.name = d.name AND r.key = d.key AND r.shard = d.shard;
  GET DIAGNOSTICS gone = ROW_COUNT;
  WITH doomed AS (
    SELECT r.name, r.key, r.shard
    FROM public.rate_limits AS r
    WHERE r.name = rate_limit_reset.name AND r.shard > 0
      AND NOT EXISTS (
        SELECT
        FROM public.rate_limits AS z
        WHERE z.name = r.name AND z.key = r.key AND z.shard = 0
      )
    ORDER BY r.name, r.key, r.shard
    FOR UPDATE
  )
  DELETE FROM public.rate_limits AS r
  USING doomed AS d
  WHERE r.name = d.name AND r.key = d.key AND r.shard = d.shard;
  GET DIAGNOSTICS left_over = ROW_COUNT;
  RETURN gone + left_over;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_prune(
  step integer DEFAULT 1000,
  after_name text DEFAULT NULL,
  after_key text DEFAULT NULL,
  after_shard integer DEFAULT NULL,
  OUT pruned bigint,
  OUT last_name text,
  OUT last_key text,
  OUT last_shard integer
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_indexscan = on
SET enable_nestloop = on
SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  seen integer := 0;
  candidate record;
  last_of_bucket integer;
  all_locked boolean;
BEGIN
  IF NOT coalesce(step >= 1, false) THEN
    RAISE EXCEPTION 'invalid_step: a step looks at 1 row or more, not %', coalesce(step::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave step out: it is 1000 then.';
  END IF;
  pruned := 0;
  FOR candidate IN
    SELECT r.name, r.key, r.shard, r.shards, r.idle_at
    FROM public.rate_limits AS r
    WHERE (r.name, r.key, r.shard) > (coalesce(after_name, ''), coalesce(after_key, ''), coalesce(after_shard, -1))
    ORDER BY r.name, r.key, r.shard
    LIMIT step
  LOOP
    seen := seen + 1;
    last_name := candidate.name;
    last_key := candidate.key;
    last_shard := candidate.shard;
    CONTINUE WHEN candidate.idle_at > clock;
    last_of_bucket := candidate.shard;
    IF candidate.shard > 0 THEN
      CONTINUE WHEN EXISTS (
        SELECT
        FROM public.rate_limits AS r
        WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = 0 AND r.shards > candidate.shard
      );
    ELSIF candidate.shards > 1 THEN
      last_of_bucket := candidate.shards - 1;
      CONTINUE WHEN EXISTS (
        SELECT
        FROM generate_series(1, last_of_bucket) AS s (shard)
        CROSS JOIN LATERAL (
          SELECT r.idle_at
          FROM public.rate_limits AS r
          WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = s.shard
          LIMIT 1
        ) AS t
        WHERE t.idle_at > clock
      );
    END IF;
    FOR nth_shard IN candidate.shard .. last_of_bucket LOOP
      PERFORM
      FROM public.rate_limits AS r
      WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = nth_shard AND r.shards = candidate.shards
        AND r.idle_at <= clock
      FOR UPDATE SKIP LOCKED;
      all_locked := FOUND OR NOT EXISTS (
        SELECT
        FROM public.rate_limits AS r
        WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = nth_shard
      );
      EXIT WHEN NOT all_locked;
    END LOOP;
    CONTINUE WHEN NOT all_locked;
    FOR nth_shard IN candidate.shard .. last_of_bucket LOOP
      DELETE FROM public.rate_limits AS r
      WHERE r.name = candidate.name AND r.key = candidate.key AND r.shard = nth_shard;
      pruned := pruned + FOUND::integer;
    END LOOP;
  END LOOP;
  IF seen < step THEN
    last_name := NULL;
    last_key := NULL;
    last_shard := NULL;
  END IF;
END
$function$;

REVOKE ALL ON TABLE public.rate_limits, public.rate_limits_seen FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_clock() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_phase(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_validate(
  text, double precision, bigint, double precision, double precision, bigint, integer, integer
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_decide(
  text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], integer[], text[],
  text[], integer[], integer[], double precision[], text[], boolean[], integer[], integer[], bigint[], boolean
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_take(
  text, text, double precision, double precision, double precision, double precision, integer, integer, boolean,
  double precision
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_held(text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_single(
  text, text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_check(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_enforce(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reset(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reset(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_prune(integer, text, text, integer) FROM PUBLIC;
