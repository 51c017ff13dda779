-- Returns the elements of the array for limit_all_with in the units that _decide takes. _validate_element has checked them.
CREATE OR REPLACE FUNCTION rate_limit._elements(
  calls jsonb, OUT nth bigint, OUT name text, OUT key text, OUT kind text, OUT rate double precision, OUT period bigint,
  OUT capacity double precision, OUT max_reserved double precision, OUT start bigint, OUT resolution integer, OUT shards integer,
  OUT count double precision, OUT leave double precision, OUT lease_id bigint
) RETURNS SETOF record LANGUAGE sql STABLE
AS $function$
  SELECT
    e.nth,
    e.name,
    e.key,
    CASE WHEN e.every IS NULL THEN e.kind ELSE rate_limit._calendar_kind(e.every, e.zone, e.anchor) END,
    CASE e.kind WHEN 'gate' THEN 1 WHEN 'concurrency' THEN e.capacity ELSE e.rate END,
    CASE e.kind
      WHEN 'gate' THEN 1
      ELSE (extract(epoch FROM coalesce(
        rate_limit._length(coalesce(e.period, e.lease)), e.every::interval, '30 seconds')) * 1000000)::bigint
    END,
    CASE e.kind WHEN 'gate' THEN 0 WHEN 'concurrency' THEN NULL ELSE e.capacity END,
    CASE e.kind WHEN 'gate' THEN 0 ELSE e.max_reserved END,
    (extract(epoch FROM rate_limit._length(e.start)) * 1000000)::bigint,
    e.resolution::integer,
    coalesce(e.shards, 1)::integer,
    CASE e.kind WHEN 'gate' THEN 0 ELSE coalesce(e.count, 1) END,
    greatest(e.leave, e.leave_fraction * coalesce(e.capacity, e.rate)),
    e.lease_id::bigint
  FROM ROWS FROM (
    pg_catalog.jsonb_to_recordset(calls) AS (
      name text, key text, kind text, rate double precision, period text, capacity double precision,
      max_reserved double precision, start text, resolution numeric, shards numeric, count double precision,
      leave double precision, leave_fraction double precision, every text, zone text, anchor text, lease text, lease_id numeric)
  ) WITH ORDINALITY AS e (
    name, key, kind, rate, period, capacity, max_reserved, start, resolution, shards, count, leave, leave_fraction, every, zone,
    anchor, lease, lease_id, nth)
$function$;
