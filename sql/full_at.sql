-- When a token bucket that holds `value` at `ts` is full again.
CREATE OR REPLACE FUNCTION public.rate_limit_full_at(
  value double precision,
  ts bigint,
  rate double precision,
  period double precision,
  capacity double precision
)
RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $function$
  SELECT ts + pg_catalog.ceil((capacity - value) * period / rate)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_full_at IS 'Returns the time at which a token bucket is full; inlined.';
