-- Returns a length of time in JSON as an interval: '1 minute', '1h 30m', '1500ms', '1 day 02:00:00', 'PT90S'. Returns NULL for
-- any other text. The cast alone would raise an error that does not name the element, so the patterns accept only texts that
-- every version of PostgreSQL can cast: units in one order without repetition; no number that overflows; a fraction only in the
-- last number; a space before the next number, except in forms like "1h30m". Units are lower case, because a limits file reads
-- "1M" as a month, and the cast reads it as a minute. There are no backslashes, because standard_conforming_strings may be off.
-- Later numbers get a sign of their own, because a leading minus sign would apply to them, too, if intervalstyle is
-- sql_standard.
CREATE OR REPLACE FUNCTION rate_limit._length(length text) RETURNS interval LANGUAGE sql STABLE
AS $function$
  SELECT CASE
    WHEN length !~ '([a-z][a-z]|w)[0-9]|[a-z][-+]|^[^:]*:[^:]*[.]'
      AND pg_catalog.regexp_replace(length, '(?<=[0-9])[.][0-9]{1,6}(?=[ A-Za-z]*$)', '') ~ (
        '^ *(?=[-+0-9])'
        || '([-+]?[0-9]{1,6} *(years?|yrs?|y) *)?'
        || '([-+]?[0-9]{1,7} *(months?|mons?) *)?'
        || '([-+]?[0-9]{1,7} *(weeks?|w) *)?'
        || '([-+]?[0-9]{1,8} *(days?|d) *)?'
        || '([-+]?[0-9]{1,8}:[0-5][0-9](:[0-5][0-9])? *'
        || '|([-+]?[0-9]{1,8} *(hours?|hrs?|h) *)?'
        || '([-+]?[0-9]{1,9} *(minutes?|mins?|m) *)?'
        || '([-+]?[0-9]{1,9} *(seconds?|secs?|s) *)?'
        || '([-+]?[0-9]{1,9} *(milliseconds?|msecs?|ms) *)?'
        || '([-+]?[0-9]{1,9} *(microseconds?|usecs?|us) *)?'
        || ')$'
        || '|^P(?=[0-9T])([0-9]{1,6}Y)?([0-9]{1,7}M)?([0-9]{1,7}W)?([0-9]{1,8}D)?'
        || '(T(?=[0-9])([0-9]{1,8}H)?([0-9]{1,9}M)?([0-9]{1,9}S)?)?$'
      )
    THEN CASE
      WHEN length ~ '^ *-' THEN pg_catalog.regexp_replace(length, '([a-z]) *([0-9])', E'\\1 +\\2', 'g')
      ELSE length
    END::interval
  END
$function$;
