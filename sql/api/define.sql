-- Stores a limit, or changes it from the next call on. Returns whether that changed anything. The options are those of a limits
-- file: a token bucket, a fixed and a sliding window have `rate` and `period`, a calendar window has `rate` and `every`, a
-- concurrency limit has `capacity` and `lease`, and a gate has none.
--   SELECT rate_limit.define('send_message', kind => 'token_bucket', rate => 10, period => '1 minute');
--   SELECT rate_limit.define('budget', kind => 'calendar_window', rate => 1e6, every => '1 month', zone => 'Europe/Berlin');
--
-- Definitions are only added, so that each is kept with its time and its author.
CREATE OR REPLACE FUNCTION rate_limit.define(
  name text, kind text, rate double precision DEFAULT NULL, period interval DEFAULT NULL,
  capacity double precision DEFAULT NULL, max_reserved double precision DEFAULT NULL, start interval DEFAULT NULL,
  resolution integer DEFAULT NULL, shards integer DEFAULT NULL, every text DEFAULT NULL, zone text DEFAULT NULL,
  anchor text DEFAULT NULL, lease interval DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET intervalstyle = postgres SET extra_float_digits = 3 SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  element CONSTANT jsonb := jsonb_strip_nulls(jsonb_build_object(
    'name', name, 'key', '', 'kind', kind, 'rate', rate, 'period', period::text, 'capacity', capacity,
    'max_reserved', max_reserved, 'start', start::text, 'resolution', resolution, 'shards', shards, 'every', every, 'zone', zone,
    'anchor', anchor, 'lease', lease::text));
  rule rate_limit.definitions;
BEGIN
  IF 'Infinity' <= ANY (ARRAY[abs(rate), abs(capacity), abs(max_reserved)]) THEN -- NaN is larger. JSON has no such numbers.
    RAISE EXCEPTION 'invalid_limit: a rate, capacity or max_reserved of the limit "%" is infinite or NaN', name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a number from 1e-6 to 1e13.';
  END IF;
  PERFORM rate_limit._validate_element(element, NULL);
  SELECT
    e.name, NULL, e.kind, e.rate, e.period, e.capacity, e.max_reserved, e.start, e.resolution, e.shards, NULL, NULL
  INTO rule
  FROM rate_limit._elements(jsonb_build_array(element)) AS e;
  rule.start := (rule.start % rule.period + rule.period) % rule.period;
  RETURN rate_limit._redefine(rule);
END
$function$;
COMMENT ON FUNCTION rate_limit.define IS 'Stores a limit for the functions that take limits by name, or changes it.';
