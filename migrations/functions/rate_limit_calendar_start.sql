-- rate_limit_calendar_start(text, bigint)
-- SHA-256: e252b358ba6130d9caabe800b2d77eedf992a9f93479a7fcb3547c615959230b

-- calendar_window: as a fixed window, but its windows are spans of the calendar. The kind holds the calendar:
-- `calendar_window <n> <unit> <zone> <anchor>`, such as `calendar_window 1 month Europe/Berlin 2026-01-31T00:00:00`. Window k
-- starts at the local time anchor + k * n units. The sum is always made from the anchor, so that a month after 31 January is the
-- end of February, and two months after it 31 March.
--
-- AT TIME ZONE turns a local time into a moment. Where clocks go forward, it can turn several local times into one moment, or a
-- later local time into an earlier moment: Samoa skipped a day. So the window of a moment is the last one that has started by
-- then: windows tile time, and each is granted once. `period` is the nominal length of a window; it decides nothing.

-- Returns the moment at which window `nth` starts. Anchors have whole seconds, and so have offsets from UTC.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_start(kind text, nth bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT
AS $function$
DECLARE
  units CONSTANT integer := nth * split_part(kind, ' ', 2)::integer;
  local_start CONSTANT timestamp := split_part(kind, ' ', 5)::timestamp + CASE split_part(kind, ' ', 3)
    WHEN 'hour' THEN make_interval(hours => units)
    WHEN 'day' THEN make_interval(days => units)
    WHEN 'week' THEN make_interval(weeks => units)
    WHEN 'month' THEN make_interval(months => units)
    WHEN 'year' THEN make_interval(years => units)
  END;
BEGIN
  RETURN date_part('epoch', local_start AT TIME ZONE split_part(kind, ' ', 4))::bigint * 1000000;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_start IS 'Returns when a window of a calendar starts.';
