-- Decides one call on several buckets, given as jsonb. It converts the array to the arrays of _decide. Elements with the same
-- name and key become one item, with the sum of their counts and the largest `leave`. All slots of a call are held under one
-- lease.
CREATE OR REPLACE FUNCTION rate_limit._several(
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
    PERFORM rate_limit._validate_element(calls -> (nth - 1), nth);
  END LOOP;

  WITH elements AS (
    SELECT e.*, dense_rank() OVER (ORDER BY e.name COLLATE "C", e.key COLLATE "C") AS bucket
    FROM rate_limit._elements(calls) AS e
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
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave the gate out, or call block.';
  END IF;

  IF cardinality(leases) > 1 THEN
    RAISE EXCEPTION 'invalid_call: the call names two leases, % and %', leases[1], leases[2]
      USING ERRCODE = 'invalid_parameter_value', HINT = 'One lease holds all slots of a call: name it once, or not at all.';
  END IF;

  nths := ARRAY(SELECT generate_series(1, cardinality(names)));
  IF has_slots THEN
    leases := coalesce(leases, ARRAY[floor(random() * 9007199254740990)::bigint + 2]);
  END IF;
  -- NULL selects the defaults, and is faster. These are assignments because the server logs the text of a failing SELECT.
  decided := rate_limit._decide(
    kinds, rates, periods, capacities, max_reserveds, starts, resolutions,
    CASE WHEN 1 <> ANY (shard_counts) THEN shard_counts END, names, keys, NULL, nths, counts,
    CASE WHEN op <> 'limit' THEN ARRAY[op] END, CASE WHEN reserve THEN ARRAY[reserve] END,
    CASE WHEN cardinality(names) > 1 THEN ARRAY[cardinality(names)] END, NULL, NULL, leases);
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
