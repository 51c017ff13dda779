-- Returns the rule of a call, given as SQL types, in the units that _decide takes. Raises an error if the rule, the name or the
-- key is not valid. `element` is the number of the element of limit_all_with, for the message; NULL if there is only one.
CREATE OR REPLACE FUNCTION rate_limit._rule(
  name text, key text, kind text, rate double precision, period interval, capacity double precision,
  max_reserved double precision, start interval, resolution integer, shards integer, element integer DEFAULT NULL
) RETURNS rate_limit.definitions LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  which CONSTANT text := coalesce('element ' || element || ': ', '');
  length_name CONSTANT text := CASE kind WHEN 'concurrency' THEN 'lease' ELSE 'period' END;
  length bigint; -- of the period, in microseconds
  starts bigint;
BEGIN
  IF kind = 'calendar_window' AND isfinite(period) THEN
    -- The period is an interval of one unit, as '1 month', in UTC. Seven days are a week.
    SELECT coalesce(
      rate_limit._calendar_kind(
        CASE period
          WHEN make_interval(months => p.months) THEN p.months || ' month'
          WHEN make_interval(days => p.days) THEN CASE WHEN p.days % 7 = 0 THEN p.days / 7 || ' week' ELSE p.days || ' day' END
          WHEN make_interval(hours => p.hours) THEN p.hours || ' hour'
        END, NULL, NULL),
      kind)
    INTO kind
    FROM (
      SELECT
        (extract(year FROM period) * 12 + extract(month FROM period))::integer AS months,
        extract(day FROM period)::integer AS days,
        extract(hour FROM period)::integer AS hours
    ) AS p;
  END IF;
  IF coalesce(octet_length(name), 0) = 0 THEN
    RAISE EXCEPTION 'invalid_name: %the limit''s name is %', which, CASE WHEN name IS NULL THEN 'NULL' ELSE 'empty' END
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the limit a name of 1 to 255 bytes.';
  END IF;
  IF octet_length(name) > 255 THEN
    RAISE EXCEPTION 'invalid_name: %the limit''s name has % bytes, and at most 255 are allowed', which, octet_length(name)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten the name.';
  END IF;
  IF key IS NULL THEN
    RAISE EXCEPTION 'invalid_key: %the key is NULL', which
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass '''' for the global bucket.';
  END IF;
  IF octet_length(key) > 1024 THEN
    RAISE EXCEPTION 'invalid_key: %the key has % bytes, and at most 1024 are allowed', which, octet_length(key)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten or hash the key.';
  END IF;
  -- So that the lengths fit into microseconds; _validate checks the exact bounds. NULL is not true.
  IF NOT coalesce(abs(extract(epoch FROM period)) < 1e12, false) THEN
    RAISE EXCEPTION 'invalid_limit: %the % % is not between 1 microsecond and 36525 days',
      which, length_name, coalesce(period::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = format('Give the %s as an interval, like ''1 minute''.', length_name);
  END IF;
  IF NOT abs(extract(epoch FROM start)) < 1e12 THEN
    RAISE EXCEPTION 'invalid_limit: %the start % is more than 1e12 seconds from the Unix epoch', which, start
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the remainder modulo the period, like ''7 hours''.';
  END IF;
  IF kind NOT LIKE 'calendar_window%' AND (extract(year FROM period) <> 0 OR extract(month FROM period) <> 0) THEN
    RAISE EXCEPTION 'invalid_limit: %the % % has months or years, which have no fixed length', which, length_name, period
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it in days or shorter units, like ''30 days''.';
  END IF;
  IF extract(year FROM start) <> 0 OR extract(month FROM start) <> 0 THEN
    RAISE EXCEPTION 'invalid_limit: %the start % has months or years, which have no fixed length', which, start
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it in days or shorter units, like ''30 days''.';
  END IF;
  length := (extract(epoch FROM period) * 1000000)::bigint;
  starts := (extract(epoch FROM start) * 1000000)::bigint;
  PERFORM rate_limit._validate(kind, rate, length, capacity, max_reserved, starts, resolution, shards, which);
  RETURN CAST(
    ROW(name, NULL, kind, rate, length, capacity, max_reserved, starts, resolution, shards, NULL, NULL)
    AS rate_limit.definitions);
END
$function$;
