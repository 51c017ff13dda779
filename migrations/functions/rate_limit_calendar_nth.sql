-- rate_limit_calendar_nth(text, bigint)
-- SHA-256: 9f320ca1ccb4fc26c6af8a66fcd11486326dc34e8bc93cb3681349b4e5fb9c47

-- Returns the number of the window that contains `at`; NULL if the kind is not a calendar window. The estimate is the last window
-- that starts at or before the local time. It is too high where clocks go back: then its start is still to come.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_nth(kind text, at bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  every integer;
  anchor timestamp;
  local_time timestamp;
  nth bigint;
BEGIN
  IF kind NOT LIKE 'calendar_window %' THEN
    RETURN NULL;
  END IF;
  every := nullif(greatest(split_part(kind, ' ', 2)::integer, 0), 0);
  anchor := split_part(kind, ' ', 5)::timestamp;
  local_time := to_timestamp(floor(at / 1e6)) AT TIME ZONE split_part(kind, ' ', 4);
  nth := floor(CASE split_part(kind, ' ', 3)
    WHEN 'hour' THEN date_part('epoch', local_time - anchor) / 3600
    WHEN 'day' THEN date_part('epoch', local_time - anchor) / 86400
    WHEN 'week' THEN date_part('epoch', local_time - anchor) / 604800
    WHEN 'month'
    THEN 12 * (date_part('year', local_time) - date_part('year', anchor)) + date_part('month', local_time) - date_part('month', anchor)
    WHEN 'year' THEN date_part('year', local_time) - date_part('year', anchor)
  END / every);
  WHILE public.rate_limit_calendar_start(kind, nth) > at LOOP
    nth := nth - 1;
  END LOOP;
  RETURN nth;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_nth IS 'Returns the number of the window of a calendar that contains a time.';
