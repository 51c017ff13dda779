-- rate_limit_calendar_window_idle_at(text, double precision, bigint, double precision, bigint, double precision)
-- SHA-256: 9078d713906552376418bdb1011237d2d229a5dc6c703afcb7feefae95d41bd9

-- Returns the time at which a bucket that holds `value` in the window of `now` will be full.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_window_idle_at(
  kind text, value double precision, now bigint, rate double precision, period bigint, capacity double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $function$
  SELECT public.rate_limit_calendar_ahead(
    kind, public.rate_limit_calendar_nth(kind, now), greatest(pg_catalog.ceil((capacity - value) / rate - 1e-9), 0), period)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_window_idle_at IS 'Returns when a calendar window is full; inlined.';
