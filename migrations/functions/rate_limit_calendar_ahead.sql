-- rate_limit_calendar_ahead(text, bigint, double precision, bigint)
-- SHA-256: 661786cf3d946836fa182c595778c32b8989df506f90583669ca201e0ac82ab1

-- Returns the moment at which so many windows after window `nth` have started; NULL if there is no window `nth`. Times after
-- some 3,000 years are nominal.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_ahead(kind text, nth bigint, windows double precision, period bigint)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE STRICT
AS $function$
DECLARE
  last_nth bigint;
  starts_at bigint;
  nearby CONSTANT integer := CASE split_part(kind, ' ', 3) WHEN 'hour' THEN 24 / split_part(kind, ' ', 2)::integer ELSE 0 END;
BEGIN
  IF windows * period > 1e17 THEN
    RETURN public.rate_limit_calendar_start(kind, nth) + least(windows * period, 1e18);
  END IF;
  last_nth := nth + windows::bigint;
  starts_at := public.rate_limit_calendar_start(kind, last_nth);
  -- Where clocks go forward, by up to a day, a later window may start earlier.
  IF nearby > 0 AND public.rate_limit_calendar_start(kind, last_nth + nearby) - starts_at < nearby * period THEN
    FOR later IN 1 .. nearby LOOP
      starts_at := least(starts_at, public.rate_limit_calendar_start(kind, last_nth + later));
    END LOOP;
  END IF;
  RETURN starts_at;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_ahead IS 'Returns when a number of further windows of a calendar have started.';
