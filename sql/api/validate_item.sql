-- Checks one bucket and its limit, with options of SQL types: for limit_with and for each element of limit_all_with.
-- `element` is the number of the element, for the message; NULL if there is only one.
CREATE OR REPLACE FUNCTION rate_limit._validate_item(
  element integer, name text, key text, kind text, rate double precision, period interval, capacity double precision,
  max_reserved double precision, start interval, resolution integer, shards integer
) RETURNS void LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  which CONSTANT text := coalesce('element ' || element || ': ', '');
  length_name CONSTANT text := CASE kind WHEN 'concurrency' THEN 'lease' ELSE 'period' END;
BEGIN
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
  PERFORM rate_limit._validate(
    kind, rate, (extract(epoch FROM period) * 1000000)::bigint, capacity, max_reserved,
    (extract(epoch FROM start) * 1000000)::bigint, resolution, shards, which);
END
$function$;
