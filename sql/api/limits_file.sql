-- Returns the stored limits as a limits file in JSON, for programs that follow them.
CREATE OR REPLACE FUNCTION rate_limit._limits_file() RETURNS text LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 3 SET jit = off
AS $function$
  SELECT jsonb_build_object('limits', coalesce(
    jsonb_object_agg(
      l.name,
      jsonb_strip_nulls(jsonb_build_object(
        'kind', l.kind, 'rate', l.rate, 'period', (extract(epoch FROM l.period) * 1000000)::bigint || 'us',
        'capacity', l.capacity, 'max_reserved', l.max_reserved, 'start', (extract(epoch FROM l.start) * 1000000)::bigint || 'us',
        'resolution', l.resolution, 'shards', l.shards, 'every', l.every, 'zone', l.zone, 'anchor', l.anchor,
        'lease', (extract(epoch FROM l.lease) * 1000000)::bigint || 'us'))),
    '{}'))::text
  FROM rate_limit.limits AS l
$function$;
