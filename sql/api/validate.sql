-- Raises an error if the options of a limit are not valid. The client checks the same before it sends anything. `which` names the
-- limit in the message, if there are several.
CREATE OR REPLACE FUNCTION rate_limit._validate(
  kind text, rate double precision, period bigint, capacity double precision, max_reserved double precision, start bigint,
  resolution integer, shards integer, which text DEFAULT ''
) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  every CONSTANT text := split_part(kind, ' ', 2) || ' ' || split_part(kind, ' ', 3);
  zone CONSTANT text := split_part(kind, ' ', 4);
  anchor CONSTANT text := split_part(kind, ' ', 5);
  reason text;
BEGIN
  -- NaN and infinity sort above all other numbers; NULL is not true.
  IF kind = 'concurrency' AND NOT coalesce(rate BETWEEN 1 AND 1000 AND rate = floor(rate), false) THEN
    reason := format('the capacity %s is not a whole number of slots from 1 to 1000', coalesce(rate::text, 'NULL'));
  ELSIF NOT coalesce(rate BETWEEN 1e-6 AND 1e13, false) THEN
    reason := format('the rate %s is not a number from 1e-6 to 1e13', coalesce(rate::text, 'NULL'));
  ELSIF NOT coalesce(period BETWEEN 1 AND 3155760000000000, false) THEN
    reason := format('the %s %s is not between 1 microsecond and 36525 days',
      CASE kind WHEN 'concurrency' THEN 'lease' ELSE 'period' END, coalesce(period || ' microseconds', 'NULL'));
  ELSIF NOT (capacity = 0 OR capacity BETWEEN 1e-6 AND 1e13) THEN
    reason := format('the capacity %s is not 0 or a number from 1e-6 to 1e13', capacity);
  ELSIF NOT (max_reserved = 0 OR max_reserved BETWEEN 1e-6 AND 1e13) THEN
    reason := format('max_reserved %s is not 0 or a number from 1e-6 to 1e13', max_reserved);
  ELSIF NOT (resolution BETWEEN 1 AND 1000) THEN
    reason := format('the resolution %s is not between 1 and 1000', resolution);
  ELSIF NOT coalesce(shards BETWEEN 1 AND 1000, false) THEN
    reason := format('the number of shards %s is not between 1 and 1000', coalesce(shards::text, 'NULL'));
  ELSIF shards > 1 AND coalesce(capacity, rate) / shards < 1 THEN
    reason := format('%s tokens over %s shards are %s each, less than 1: at most %s shards have one', coalesce(capacity, rate),
      shards, coalesce(capacity, rate) / shards, greatest(floor(coalesce(capacity, rate)), 1));
  ELSIF kind = 'token_bucket' THEN
    IF start IS NOT NULL OR resolution IS NOT NULL THEN
      reason := 'start and resolution do not apply to a token bucket';
    END IF;
  ELSIF kind = 'fixed_window' THEN
    IF resolution IS NOT NULL THEN
      reason := 'resolution does not apply to a fixed window';
    END IF;
  ELSIF kind = 'sliding_window' THEN
    IF capacity IS NOT NULL OR max_reserved IS NOT NULL THEN
      reason := 'capacity and max_reserved do not apply to a sliding window';
    END IF;
  ELSIF kind = 'calendar_window' THEN
    reason := 'the period of a calendar window is not a number of hours, days, weeks, months or years, such as "1 month"';
  ELSIF kind LIKE 'calendar_window %' AND (start IS NOT NULL OR resolution IS NOT NULL) THEN
    reason := 'start and resolution do not apply to a calendar window';
  ELSIF kind LIKE 'calendar_window %' AND rate_limit._calendar_invalid(every, zone, anchor) IS NOT NULL THEN
    reason := rate_limit._calendar_invalid(every, zone, anchor);
  ELSIF kind = rate_limit._calendar_kind(every, zone, anchor) THEN
    reason := NULL;
  ELSIF kind = 'concurrency' THEN
    IF capacity IS NOT NULL OR max_reserved IS NOT NULL OR start IS NOT NULL OR resolution IS NOT NULL OR shards > 1 THEN
      reason := 'max_reserved, start, resolution and shards do not apply to a concurrency limit';
    END IF;
  ELSIF kind = 'gate' THEN
    reason := 'a gate has no tokens: name it in limit_all_with, or call is_blocked';
  ELSE
    reason := format(
      'unknown kind "%s"; the kinds are token_bucket, fixed_window, sliding_window, calendar_window, concurrency, gate',
      coalesce(kind, 'NULL'));
  END IF;
  IF reason IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_limit: %', which || reason
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a value that the message allows, and no options of other kinds.';
  END IF;
END
$function$;
