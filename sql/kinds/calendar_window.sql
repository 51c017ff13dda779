-- calendar_window: as a fixed window, but its windows are spans of the calendar. The kind holds the calendar:
-- `calendar_window <n> <unit> <zone> <anchor>`, such as `calendar_window 1 month Europe/Berlin 2026-01-31T00:00:00`. Window k
-- starts at the local time anchor + k * n units. The sum is always made from the anchor, so that a month after 31 January is the
-- end of February, and two months after it 31 March.
--
-- AT TIME ZONE turns a local time into a moment. Where clocks go forward, it can turn several local times into one moment, or a
-- later local time into an earlier moment: Samoa skipped a day. So the window of a moment is the last one that has started by
-- then: windows tile time, and each is granted once. `period` is the nominal length of a window; it decides nothing.

-- Returns the zone of a calendar. AT TIME ZONE looks up a name as an abbreviation first. Seven names of zones are abbreviations,
-- too: those have no daylight saving time, and the session's timezone_abbreviations can change them. So they are replaced by
-- other names of the same zones.
CREATE OR REPLACE FUNCTION rate_limit._calendar_zone(kind text) RETURNS text LANGUAGE sql IMMUTABLE
AS $function$
  SELECT CASE pg_catalog.upper(pg_catalog.split_part(kind, ' ', 4))
    WHEN 'CET' THEN 'Europe/Brussels' WHEN 'MET' THEN 'Europe/Brussels' WHEN 'EET' THEN 'Europe/Athens'
    WHEN 'WET' THEN 'Europe/Lisbon' WHEN 'EST' THEN 'America/Panama' WHEN 'MST' THEN 'America/Phoenix'
    WHEN 'HST' THEN 'Pacific/Honolulu' ELSE pg_catalog.split_part(kind, ' ', 4)
  END
$function$;

-- Returns the moment at which window `nth` starts. Anchors have whole seconds, and so have offsets from UTC.
CREATE OR REPLACE FUNCTION rate_limit._calendar_start(kind text, nth bigint) RETURNS bigint
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
  RETURN date_part('epoch', local_start AT TIME ZONE rate_limit._calendar_zone(kind))::bigint * 1000000;
END
$function$;

-- Returns the number of the window that contains `at`; NULL if the kind is not a calendar window. The estimate is the last window
-- that starts at or before the local time. It is too high where clocks go back: then its start is still to come.
CREATE OR REPLACE FUNCTION rate_limit._calendar_nth(kind text, at bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE
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
  local_time := to_timestamp(floor(at / 1e6)) AT TIME ZONE rate_limit._calendar_zone(kind);
  nth := floor(CASE split_part(kind, ' ', 3)
    WHEN 'hour' THEN date_part('epoch', local_time - anchor) / 3600
    WHEN 'day' THEN date_part('epoch', local_time - anchor) / 86400
    WHEN 'week' THEN date_part('epoch', local_time - anchor) / 604800
    WHEN 'month'
    THEN 12 * (date_part('year', local_time) - date_part('year', anchor))
      + date_part('month', local_time) - date_part('month', anchor)
    WHEN 'year' THEN date_part('year', local_time) - date_part('year', anchor)
  END / every);
  WHILE rate_limit._calendar_start(kind, nth) > at LOOP
    nth := nth - 1;
  END LOOP;
  RETURN nth;
END
$function$;

-- Returns the moment at which so many windows after window `nth` have started; NULL if there is no window `nth`. Times after
-- some 3,000 years are nominal.
CREATE OR REPLACE FUNCTION rate_limit._calendar_ahead(kind text, nth bigint, windows double precision, period bigint)
RETURNS double precision LANGUAGE plpgsql IMMUTABLE STRICT
AS $function$
DECLARE
  last_nth bigint;
  starts_at bigint;
  nearby CONSTANT integer := CASE split_part(kind, ' ', 3) WHEN 'hour' THEN 24 / split_part(kind, ' ', 2)::integer ELSE 0 END;
BEGIN
  IF windows * period > 1e17 THEN
    RETURN rate_limit._calendar_start(kind, nth) + least(windows * period, 1e18);
  END IF;
  last_nth := nth + windows::bigint;
  starts_at := rate_limit._calendar_start(kind, last_nth);
  -- Where clocks go forward, by up to a day, a later window may start earlier.
  IF nearby > 0 AND rate_limit._calendar_start(kind, last_nth + nearby) - starts_at < nearby * period THEN
    FOR later IN 1 .. nearby LOOP
      starts_at := least(starts_at, rate_limit._calendar_start(kind, last_nth + later));
    END LOOP;
  END IF;
  RETURN starts_at;
END
$function$;

-- Returns the balance at `now`; NULL if the kind is not a calendar window.
CREATE OR REPLACE FUNCTION rate_limit._calendar_window_value(
  kind text, value double precision, ts bigint, now bigint, rate double precision, capacity double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  nth CONSTANT bigint := rate_limit._calendar_nth(kind, now);
BEGIN
  RETURN least(
    value + rate * CASE
      WHEN ts < rate_limit._calendar_start(kind, nth) THEN nth - rate_limit._calendar_nth(kind, ts) ELSE 0
    END,
    capacity);
END
$function$;

-- Returns the time at which a bucket that holds `value` in the window of `now` will be full.
CREATE OR REPLACE FUNCTION rate_limit._calendar_window_idle_at(
  kind text, value double precision, now bigint, rate double precision, period bigint, capacity double precision
) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $function$
  SELECT rate_limit._calendar_ahead(
    kind, rate_limit._calendar_nth(kind, now), greatest(pg_catalog.ceil((capacity - value) / rate - 1e-9), 0), period)::bigint
$function$;

-- Returns the microseconds from `now` until the balance has grown by `missing`.
CREATE OR REPLACE FUNCTION rate_limit._calendar_window_wait(
  kind text, missing double precision, tolerance double precision, now bigint, rate double precision, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE
AS $function$
  SELECT rate_limit._calendar_ahead(
    kind, rate_limit._calendar_nth(kind, now), greatest(pg_catalog.ceil((missing - tolerance) / rate), 1), period) - now
$function$;

-- Returns the kind with its calendar. `every` is a number and a unit, as in '3 months'; `anchor` is a date, or a date and time.
CREATE OR REPLACE FUNCTION rate_limit._calendar_kind(every text, zone text, anchor text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $function$
  SELECT 'calendar_window ' || pg_catalog.substring(every, '^[0-9]+') || ' '
    || pg_catalog.rtrim(pg_catalog.substring(every, '[a-z]+'), 's') || ' ' || coalesce(zone, 'UTC') || ' '
    || coalesce(
      pg_catalog.replace(anchor, ' ', 'T')
        || CASE pg_catalog.length(anchor) WHEN 10 THEN 'T00:00:00' WHEN 16 THEN ':00' ELSE '' END,
      CASE WHEN every LIKE '%week%' THEN '1970-01-05T00:00:00' ELSE '1970-01-01T00:00:00' END)
$function$;

-- Returns why a calendar is not valid, or NULL. For an unknown zone, AT TIME ZONE raises an error that names it. It also accepts
-- abbreviations, POSIX zones such as GMT+3 or a mistyped name with a digit, and zones with leap seconds. So the form is checked,
-- as in src/limit/calendar.rs: a name of this form that the server knows is one of pg_timezone_names.
CREATE OR REPLACE FUNCTION rate_limit._calendar_invalid(every text, zone text, anchor text) RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  most CONSTANT integer := CASE substring(every, '^[0-9]+ *(hour|day|week|month|year)s?$')
    WHEN 'hour' THEN 876600 WHEN 'day' THEN 36525 WHEN 'week' THEN 5217 WHEN 'month' THEN 1200 WHEN 'year' THEN 100
  END;
  -- In ASCII, whatever the collation.
  name CONSTANT text := regexp_replace(
    translate(zone, 'abcdefghijklmnopqrstuvwxyz', 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'), '^POSIX/', '');
BEGIN
  IF (substring(every, '^([0-9]{1,6})[^0-9]')::integer BETWEEN 1 AND most) IS NOT TRUE THEN
    RETURN format('every "%s" is not a whole number of hours, days, weeks, months or years, such as "1 month", up to 100 years',
      left(every, 100));
  ELSIF length(zone) > 48 OR name LIKE 'RIGHT/%' OR name !~ '^[A-Z_-]+(/[A-Z_-]+)+$'
    AND name !~ '^ETC/GMT(0|[+]([0-9]|1[0-2])|-([0-9]|1[0-4]))$'
    AND name <> ALL (ARRAY['CET', 'CST6CDT', 'CUBA', 'EET', 'EST', 'EST5EDT', 'EGYPT', 'EIRE', 'FACTORY', 'GB', 'GB-EIRE', 'GMT',
      'GMT+0', 'GMT-0', 'GMT0', 'GREENWICH', 'HST', 'HONGKONG', 'ICELAND', 'IRAN', 'ISRAEL', 'JAMAICA', 'JAPAN', 'KWAJALEIN',
      'LIBYA', 'MET', 'MST', 'MST7MDT', 'NZ', 'NZ-CHAT', 'NAVAJO', 'PRC', 'PST8PDT', 'POLAND', 'PORTUGAL', 'ROC', 'ROK',
      'SINGAPORE', 'TURKEY', 'UCT', 'UTC', 'UNIVERSAL', 'W-SU', 'WET', 'ZULU', 'LOCALTIME', 'POSIXRULES'])
  THEN
    RETURN format('the zone "%s" is not the name of a time zone, such as "Europe/Berlin"; abbreviations and offsets are no names',
      left(zone, 100));
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
