-- rate_limit_calendar_kind_of(interval)
-- SHA-256: 67d1215e18c9661d8b4a8a5d4ede18e52eeedbb0c84a72109eb0418395f24a9b

-- Returns the kind for a period such as '1 month', in UTC: an interval of one unit. Seven days are a week. NULL for any other one.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_kind_of(period interval) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  months CONSTANT integer := extract(year FROM period) * 12 + extract(month FROM period);
  days CONSTANT integer := extract(day FROM period);
  hours CONSTANT integer := extract(hour FROM period);
BEGIN
  RETURN public.rate_limit_calendar_kind(
    CASE period
      WHEN make_interval(months => months) THEN months || ' month'
      WHEN make_interval(days => days) THEN CASE WHEN days % 7 = 0 THEN days / 7 || ' week' ELSE days || ' day' END
      WHEN make_interval(hours => hours) THEN hours || ' hour'
    END, NULL, NULL);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_kind_of IS 'Returns the kind of a calendar window with this period.';
