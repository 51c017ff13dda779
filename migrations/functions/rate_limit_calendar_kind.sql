-- rate_limit_calendar_kind(text, text, text)
-- SHA-256: 4a19b2530e34125cb581c913d5646ef2235e7862e4826ad04fc1080ff18a0fcf

-- Returns the kind with its calendar. `every` is a number and a unit, as in '3 months'; `anchor` is a date, or a date and time.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_kind(every text, zone text, anchor text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $function$
  SELECT 'calendar_window ' || pg_catalog.substring(every, '^[0-9]+') || ' '
    || pg_catalog.rtrim(pg_catalog.substring(every, '[a-z]+'), 's') || ' ' || coalesce(zone, 'UTC') || ' '
    || coalesce(
      pg_catalog.replace(anchor, ' ', 'T') || CASE pg_catalog.length(anchor) WHEN 10 THEN 'T00:00:00' WHEN 16 THEN ':00' ELSE '' END,
      CASE WHEN every LIKE '%week%' THEN '1970-01-05T00:00:00' ELSE '1970-01-01T00:00:00' END)
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_kind IS 'Returns the kind of a calendar window, with its calendar.';
