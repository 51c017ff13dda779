-- rate_limit_calendar_invalid(text, text, text)
-- SHA-256: 9b438f4fbc4ee87af8e1ee242b629e311e76ca25846b48ac362d6b1c267ffec3

-- Returns why a calendar is not valid, or NULL. For an unknown zone, AT TIME ZONE raises an error that names it. It also accepts
-- POSIX zones, such as a mistyped name with a digit; so digits are only allowed in the names that have some.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_invalid(every text, zone text, anchor text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  most CONSTANT integer := CASE substring(every, '^[0-9]+ *(hour|day|week|month|year)s?$')
    WHEN 'hour' THEN 876600 WHEN 'day' THEN 36525 WHEN 'week' THEN 5217 WHEN 'month' THEN 1200 WHEN 'year' THEN 100
  END;
BEGIN
  IF (substring(every, '^([0-9]{1,6})[^0-9]')::integer BETWEEN 1 AND most) IS NOT TRUE THEN
    RETURN format('every "%s" is not a whole number of hours, days, weeks, months or years, such as "1 month", up to 100 years',
      left(every, 100));
  ELSIF zone !~ '^[A-Za-z][A-Za-z/_+-]{0,47}$' AND zone !~* '^(etc/)?gmt[-+]?[0-9]{1,2}$'
    AND upper(zone) NOT IN ('EST5EDT', 'CST6CDT', 'MST7MDT', 'PST8PDT')
  THEN
    RETURN format('the zone "%s" is not the name of a time zone, such as "Europe/Berlin"', left(zone, 100));
  ELSIF (
    CASE
      WHEN anchor ~ '^(1[89]|20|21)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]([ T]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?)?$'
      THEN substr(anchor, 9, 2)::integer
        BETWEEN 1 AND extract(day FROM (left(anchor, 8) || '01')::date + interval '1 month' - interval '1 day')
      ELSE anchor IS NULL
    END) IS NOT TRUE
  THEN
    RETURN format('the anchor "%s" is not a date such as "2026-01-31", or a date and time such as "2026-01-31 09:00", in the '
      'years 1800 to 2199', left(anchor, 100));
  END IF;
  PERFORM timezone(zone, timestamp '2000-01-01');
  RETURN NULL;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_invalid IS 'Returns why a calendar is not valid, or NULL.';
