-- Raises an error if an element of the array for limit_all_with, or a limit to define, is not valid. It checks the names and
-- types of the fields, then the rules of limit_with. `nth` is the number of the element; NULL if there is only one. The messages
-- show no key.
CREATE OR REPLACE FUNCTION rate_limit._validate_element(element jsonb, nth integer) RETURNS void LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  field text;
  given text;
  expected text;
  number numeric;
  length interval;
  kind CONSTANT text := element ->> 'kind';
  -- The length of a window or a lease, and the tokens of a bucket or its slots.
  length_field CONSTANT text := CASE kind WHEN 'calendar_window' THEN 'every' WHEN 'concurrency' THEN 'lease' ELSE 'period' END;
  rate_field CONSTANT text := CASE kind WHEN 'concurrency' THEN 'capacity' ELSE 'rate' END;
  is_calendar CONSTANT boolean := coalesce(kind = 'calendar_window', false);
  is_concurrency CONSTANT boolean := coalesce(kind = 'concurrency', false);
  which CONSTANT text := coalesce('element ' || nth || ': ', '');
  reason text;
  count double precision;
  capacity double precision;
BEGIN
  IF jsonb_typeof(element) <> 'object' THEN
    RAISE EXCEPTION 'invalid_call: element % is of type %, not object', nth, jsonb_typeof(element)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give each limit as an object with its fields.';
  END IF;
  FOR field IN SELECT k.field FROM jsonb_object_keys(element) AS k (field) LOOP
    given := jsonb_typeof(element -> field);
    expected := CASE
      WHEN field IN ('name', 'key', 'kind', 'period', 'start', 'every', 'zone', 'anchor', 'lease') THEN 'string'
      WHEN field IN ('rate', 'capacity', 'count', 'leave', 'leave_fraction', 'max_reserved', 'resolution', 'shards', 'lease_id')
        THEN 'number'
    END;
    IF expected IS NULL THEN
      RAISE EXCEPTION 'invalid_call: element % has the unknown field "%"', nth, left(field, 100)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'The fields are name, key, kind, rate, period, capacity, count, leave, '
          'leave_fraction, max_reserved, start, resolution and shards; for a calendar window every, zone and anchor instead of '
          'period; for a concurrency limit capacity, count, lease and lease_id; `reserve` is an argument of the function.';
    ELSIF given NOT IN (expected, 'null') THEN
      RAISE EXCEPTION 'invalid_call: %the field "%" is of type %, not %', which, field, given, expected
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Write numbers without quotes, all else with quotes.';
    ELSIF given = 'number' THEN
      -- A jsonb number may have any size; the casts below would raise a less helpful error.
      number := (element ->> field)::numeric;
      IF number <> 0 AND NOT (abs(number) BETWEEN 1e-300 AND 1e300) THEN
        RAISE EXCEPTION '%: %the field "%" is %, which is out of range',
          CASE field
            WHEN 'count' THEN 'invalid_count' WHEN 'leave' THEN 'invalid_leave' WHEN 'leave_fraction' THEN 'invalid_leave'
            WHEN 'lease_id' THEN 'invalid_lease' ELSE 'invalid_limit'
          END, which, field, btrim(to_char(number, '9.99EEEE'))
          USING ERRCODE = 'invalid_parameter_value', HINT = CASE
            WHEN field = 'lease_id' THEN 'Use a whole number from 2 to 9007199254740991.'
            WHEN field IN ('resolution', 'shards') THEN 'Use a whole number from 1 to 1000.'
            WHEN field = 'rate' THEN 'Use a number from 1e-6 to 1e13.'
            ELSE 'Use 0, or a number from 1e-6 to 1e13.'
          END;
      ELSIF field IN ('resolution', 'shards') AND NOT (number = trunc(number) AND abs(number) < 1e9) THEN
        RAISE EXCEPTION 'invalid_limit: %the field "%" is %, not a whole number from 1 to 1000',
          which, field, left(number::text, 40)
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a whole number from 1 to 1000.';
      ELSIF field = 'lease_id' AND NOT (number = trunc(number) AND number BETWEEN 2 AND 9007199254740991) THEN
        RAISE EXCEPTION 'invalid_lease: %the lease_id % is not a whole number from 2 to 9007199254740991',
          which, left(number::text, 40)
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out: then one is drawn and returned.';
      END IF;
    END IF;
  END LOOP;
  FOREACH field IN ARRAY ARRAY['name', 'key', 'kind', rate_field, length_field] LOOP
    -- A gate has neither rate nor period, and a lease has a default.
    IF element ->> field IS NULL AND field <> 'lease' AND (kind IS DISTINCT FROM 'gate' OR field IN ('name', 'key')) THEN
      RAISE EXCEPTION 'invalid_call: %the field "%" is missing', which, field
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Give name, key, kind, rate and period; the empty key is global. A '
          'calendar window has `every` instead of a period; a concurrency limit has a capacity, and neither rate nor period.';
    END IF;
  END LOOP;
  FOR field IN SELECT k.field FROM jsonb_object_keys(element) AS k (field) ORDER BY 1 DESC LOOP
    CONTINUE WHEN element ->> field IS NULL OR CASE
      WHEN field IN ('name', 'key', 'kind') THEN true
      WHEN kind = 'gate' THEN false
      WHEN is_concurrency THEN field IN ('capacity', 'count', 'lease', 'lease_id')
      WHEN is_calendar THEN field NOT IN ('period', 'lease', 'lease_id')
      ELSE field NOT IN ('every', 'zone', 'anchor', 'lease', 'lease_id')
    END;
    RAISE EXCEPTION 'invalid_limit: % does not apply to a %', which || field,
      CASE WHEN is_concurrency THEN 'concurrency limit' ELSE left(kind, 100) END
      USING ERRCODE = 'invalid_parameter_value', HINT = CASE
        WHEN kind = 'gate' THEN 'Give a gate only its name, key and kind.'
        WHEN is_concurrency THEN 'A concurrency limit has name, key, kind and capacity, and optionally count, lease and lease_id.'
        WHEN field IN ('lease', 'lease_id') THEN 'Only a concurrency limit has a lease.'
        ELSE 'Only a calendar window has every, zone and anchor, and no period.'
      END;
  END LOOP;
  IF kind = 'gate' THEN
    PERFORM rate_limit._rule(
      element ->> 'name', element ->> 'key', 'token_bucket', 1, '1 microsecond', 0, 0, NULL, NULL, 1, nth);
    RETURN;
  END IF;
  IF is_calendar THEN
    reason := rate_limit._calendar_invalid(element ->> 'every', element ->> 'zone', element ->> 'anchor');
    IF reason IS NOT NULL THEN
      RAISE EXCEPTION 'invalid_limit: %', which || reason
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a value that the message allows, and a zone of pg_timezone_names.';
    END IF;
  END IF;
  FOREACH field IN ARRAY ARRAY['period', 'lease', 'start'] LOOP
    length := rate_limit._length(element ->> field);
    IF length IS NULL AND element ->> field IS NOT NULL THEN
      RAISE EXCEPTION 'invalid_limit: %the % "%" is not an interval', which, field, left(element ->> field, 100)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it like ''1 minute'', ''1h 30m'' or ''1 day 02:00:00''.';
    END IF;
  END LOOP;
  -- `length` is now that of `start`.
  PERFORM rate_limit._rule(
    element ->> 'name', element ->> 'key',
    CASE WHEN is_calendar THEN rate_limit._calendar_kind(element ->> 'every', element ->> 'zone', element ->> 'anchor')
      ELSE kind END,
    (element ->> rate_field)::double precision,
    CASE WHEN is_calendar THEN (element ->> 'every')::interval
      ELSE rate_limit._length(coalesce(element ->> length_field, '30 seconds')) END,
    CASE WHEN NOT is_concurrency THEN (element ->> 'capacity')::double precision END,
    (element ->> 'max_reserved')::double precision,
    length, (element ->> 'resolution')::numeric::integer, coalesce(element ->> 'shards', '1')::numeric::integer, nth);
  -- Checked here, because the counts of one bucket are added up before the decision.
  count := coalesce(element ->> 'count', '1')::double precision;
  capacity := coalesce(element ->> 'capacity', element ->> 'rate')::double precision;
  IF NOT (count = 0 OR rate_limit._is_exact(count, capacity)) THEN
    expected := rate_limit._exact_values(count, capacity);
    RAISE EXCEPTION 'invalid_count: %the count % for the limit "%" is not 0 or %', which, count, element ->> 'name',
      expected
      USING ERRCODE = 'invalid_parameter_value', HINT = format('Use 0, or %s.', expected);
  END IF;
  IF is_concurrency AND count <> floor(count) THEN
    RAISE EXCEPTION 'invalid_count: %the count % for the concurrency limit "%" is not a whole number', which, count,
      element ->> 'name'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Count whole slots.';
  END IF;
  IF NOT ((element ->> 'leave_fraction')::double precision BETWEEN 0 AND 1) THEN
    RAISE EXCEPTION 'invalid_leave: %the headroom of the limit "%" is the fraction %, which is not from 0 to 1', which,
      element ->> 'name', element ->> 'leave_fraction'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a fraction of the capacity, such as 0.2.';
  END IF;
  IF NOT ((element ->> 'leave')::double precision BETWEEN 0 AND capacity) THEN
    RAISE EXCEPTION 'invalid_leave: %the headroom % for the limit "%" is not a number from 0 to the capacity %',
      which, element ->> 'leave', element ->> 'name', capacity
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave at least 0 and at most the capacity.';
  END IF;
END
$function$;
