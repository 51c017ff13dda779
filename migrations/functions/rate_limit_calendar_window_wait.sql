-- rate_limit_calendar_window_wait(text, double precision, double precision, bigint, double precision, bigint)
-- SHA-256: 8fcf89cc803eeb890212a9c7b8ab226e69abaf182b7d3867ae0c6bf2ed490c3d

-- Returns the microseconds from `now` until the balance has grown by `missing`.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_window_wait(
  kind text, missing double precision, tolerance double precision, now bigint, rate double precision, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE
AS $function$
  SELECT public.rate_limit_calendar_ahead(
    kind, public.rate_limit_calendar_nth(kind, now), greatest(pg_catalog.ceil((missing - tolerance) / rate), 1), period) - now
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_window_wait IS 'Returns the time until a calendar window has refilled; inlined.';
