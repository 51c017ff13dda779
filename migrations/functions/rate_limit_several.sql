-- rate_limit_several(text, jsonb, boolean)
-- SHA-256: 4ae9349969011ebf401594e07d49642a241d0350219d5451c44d003590d856f9

-- Decides one call on several buckets, for rate_limit_all and its variants: converts an array of limits to the arrays
-- of rate_limit_decide. Elements with the same name and key become one item, with the sum of their counts and the largest
-- `leave`. A gate becomes a token bucket of which nothing is taken: see rate_limit_block. All slots of a call are held under one
-- lease.
CREATE OR REPLACE FUNCTION public.rate_limit_several(
  op text, calls jsonb, reserve boolean, OUT ok boolean, OUT retry_after interval, OUT denied_by text[], OUT limits jsonb
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  places integer[]; -- the number of the bucket of each element
  -- One element for each bucket, in the order in which rows are locked.
  names text[];
  keys text[];
  kinds text[];
  rates double precision[];
  periods bigint[];
  capacities double precision[];
  max_reserveds double precision[];
  starts bigint[];
  resolutions integer[];
  shard_counts integer[];
  counts double precision[];
  nths integer[]; -- of the buckets
  kinds_in_sql text[];
  contradictions text[];
  leases bigint[]; -- the different ones that elements name
  has_slots boolean;
  decided record;
BEGIN
  IF jsonb_typeof(calls) IS DISTINCT FROM 'array' THEN
    RAISE EXCEPTION 'invalid_call: the argument is %, not an array', coalesce('of type ' || jsonb_typeof(calls), 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give an array of objects, one for each limit.';
  END IF;
  IF jsonb_array_length(calls) = 0 THEN
    RAISE EXCEPTION 'invalid_call: the call names no limit'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Name at least one.';
  END IF;
  FOR nth IN 1 .. jsonb_array_length(calls) LOOP
    PERFORM public.rate_limit_validate_element(calls -> (nth - 1), nth);
  END LOOP;

  WITH elements AS (
    SELECT
      e.nth,
      dense_rank() OVER (ORDER BY e.name COLLATE "C", e.key COLLATE "C") AS bucket,
      e.name,
      e.key,
      CASE WHEN e.every IS NULL THEN e.kind ELSE public.rate_limit_calendar_kind(e.every, e.zone, e.anchor) END AS kind,
      CASE e.kind WHEN 'gate' THEN 1 WHEN 'concurrency' THEN e.capacity ELSE e.rate END AS rate,
      CASE e.kind
        WHEN 'gate' THEN 1
        ELSE (extract(epoch FROM coalesce(
          public.rate_limit_length(coalesce(e.period, e.lease)), e.every::interval, '30 seconds')) * 1000000)::bigint
      END AS period,
      CASE e.kind WHEN 'gate' THEN 0 WHEN 'concurrency' THEN NULL ELSE e.capacity END AS capacity,
      CASE e.kind WHEN 'gate' THEN 0 ELSE e.max_reserved END AS max_reserved,
      (extract(epoch FROM public.rate_limit_length(e.start)) * 1000000)::bigint AS start,
      e.resolution::integer AS resolution,
      coalesce(e.shards, 1)::integer AS shards,
      CASE e.kind WHEN 'gate' THEN 0 ELSE coalesce(e.count, 1) END AS count,
      greatest(e.leave, e.leave_fraction * coalesce(e.capacity, e.rate)) AS leave,
      e.lease_id::bigint AS lease_id
    FROM ROWS FROM (
      jsonb_to_recordset(calls) AS (
        name text, key text, kind text, rate double precision, period text, capacity double precision,
        max_reserved double precision, start text, resolution numeric, shards numeric, count double precision,
        leave double precision, leave_fraction double precision, every text, zone text, anchor text, lease text, lease_id numeric)
    ) WITH ORDINALITY AS e (
      name, key, kind, rate, period, capacity, max_reserved, start, resolution, shards, count, leave, leave_fraction, every, zone,
      anchor, lease, lease_id, nth)
  ),
  buckets AS (
    SELECT
      e.bucket, e.name, e.key, e.kind, e.rate, e.period, e.capacity, e.max_reserved, e.start, e.resolution, e.shards,
      sum(e.count) AS count,
      max(e.leave) AS leave,
      count(*) OVER (PARTITION BY e.bucket) AS forms
    FROM elements AS e
    GROUP BY
      e.bucket, e.name, e.key, e.kind, e.rate, e.period, e.capacity, e.max_reserved, e.start, e.resolution, e.shards
  )
  SELECT
    (SELECT array_agg(e.bucket::integer ORDER BY e.nth) FROM elements AS e),
    array_agg(b.name ORDER BY b.bucket),
    array_agg(b.key ORDER BY b.bucket),
    array_agg(b.kind ORDER BY b.bucket),
    array_agg(b.rate ORDER BY b.bucket),
    array_agg(b.period ORDER BY b.bucket),
    array_agg(b.capacity ORDER BY b.bucket),
    array_agg(CASE WHEN b.leave > 0 THEN - b.leave ELSE b.max_reserved END ORDER BY b.bucket),
    array_agg(b.start ORDER BY b.bucket),
    array_agg(b.resolution ORDER BY b.bucket),
    array_agg(b.shards ORDER BY b.bucket),
    array_agg(b.count ORDER BY b.bucket),
    array_agg(b.name ORDER BY b.bucket) FILTER (WHERE b.forms > 1),
    (SELECT array_agg(DISTINCT e.lease_id) FROM elements AS e WHERE e.lease_id IS NOT NULL),
    bool_or(b.kind = 'concurrency')
  INTO
    places, names, keys, kinds, rates, periods, capacities, max_reserveds, starts, resolutions, shard_counts, counts,
    contradictions, leases, has_slots
  FROM buckets AS b;
  IF contradictions IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_call: the call gives the limit "%" in two different forms for one key', contradictions[1]
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give it once, or with the same options each time.';
  END IF;

  IF op IN ('charge', 'credit') AND 'gate' = ANY (kinds) THEN
    RAISE EXCEPTION 'no_tokens: the gate "%" has no tokens to %', names[array_position(kinds, 'gate')], op
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave the gate out, or call rate_limit_block.';
  END IF;

  IF cardinality(leases) > 1 THEN
    RAISE EXCEPTION 'invalid_call: the call names two leases, % and %', leases[1], leases[2]
      USING ERRCODE = 'invalid_parameter_value', HINT = 'One lease holds all slots of a call: name it once, or not at all.';
  END IF;

  nths := ARRAY(SELECT generate_series(1, cardinality(names)));
  kinds_in_sql := array_replace(kinds, 'gate', 'token_bucket');
  IF has_slots THEN
    leases := coalesce(leases, ARRAY[floor(random() * 9007199254740990)::bigint + 2]);
    decided := public.rate_limit_decide_leases(
      kinds_in_sql, rates, periods, capacities, max_reserveds, starts, resolutions, shard_counts, names, keys, nths, nths, counts,
      ARRAY[op], ARRAY[reserve], ARRAY[cardinality(names)], NULL, NULL, leases);
  ELSE
    -- NULL selects the defaults, and is faster. These are assignments because the server logs the text of a failing SELECT.
    decided := public.rate_limit_decide(
      kinds_in_sql,
      rates,
      periods,
      capacities,
      max_reserveds,
      starts,
      resolutions,
      CASE WHEN 1 <> ANY (shard_counts) THEN shard_counts END,
      names,
      keys,
      NULL,
      nths,
      counts,
      CASE WHEN op <> 'limit' THEN ARRAY[op] END,
      CASE WHEN reserve THEN ARRAY[reserve] END,
      CASE WHEN cardinality(names) > 1 THEN ARRAY[cardinality(names)] END,
      NULL,
      NULL
    );
  END IF;
  ok := decided.call_admitted IS NULL OR decided.call_admitted[1] = 1;
  retry_after := decided.call_waits[1] * interval '1 microsecond';
  denied_by := ARRAY(
    SELECT DISTINCT names[r.bucket] COLLATE "C"
    FROM unnest(decided.item_refused) WITH ORDINALITY AS r (refused, bucket)
    WHERE r.refused
    ORDER BY 1
  );
  limits := (
    SELECT jsonb_agg(
      jsonb_build_object(
        'name', names[p.bucket],
        'key', keys[p.bucket],
        'denied', coalesce(decided.item_refused[p.bucket], false),
        'value', CASE kinds[p.bucket] WHEN 'gate' THEN 0 ELSE decided.item_values[p.bucket] END)
      || CASE kinds[p.bucket]
        WHEN 'concurrency' THEN jsonb_build_object('lease_id', CASE WHEN ok AND op = 'limit' THEN leases[1] END)
        ELSE '{}'
      END
      ORDER BY p.nth)
    FROM unnest(places) WITH ORDINALITY AS p (bucket, nth)
  );
END
$function$;
COMMENT ON FUNCTION public.rate_limit_several IS
  'Decides one call on several buckets, given as jsonb; called by rate_limit_all and its variants.';
