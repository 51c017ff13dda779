-- Adds their stored rules to the elements of the array for limit_all, which makes it one for limit_all_with.
CREATE OR REPLACE FUNCTION rate_limit._defined(calls jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET intervalstyle = postgres SET extra_float_digits = 3 SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  element jsonb;
  field text;
  rule jsonb;
  elements jsonb := '[]';
BEGIN
  -- limit_all_with refuses any other form.
  IF jsonb_typeof(calls) IS DISTINCT FROM 'array' THEN
    RETURN calls;
  END IF;
  FOR nth IN 1 .. jsonb_array_length(calls) LOOP
    element := calls -> (nth - 1);
    IF jsonb_typeof(element) = 'object' AND jsonb_typeof(element -> 'name') = 'string' THEN
      SELECT to_jsonb(l) - ARRAY['defined_at', 'defined_by']
      INTO rule
      FROM rate_limit.limits AS l
      WHERE l.name = element ->> 'name';
      IF rule IS NULL THEN
        RAISE EXCEPTION 'undefined_limit: element %: the limit "%" is not defined', nth, left(element ->> 'name', 255)
          USING ERRCODE = 'undefined_object',
            HINT = 'Define it with the function define, or give its rule to a function with _with.';
      END IF;
      SELECT min(k.field)
      INTO field
      FROM jsonb_object_keys(element) AS k (field)
      WHERE k.field <> 'name' AND rule ? k.field AND element ->> k.field IS NOT NULL;
      IF field IS NOT NULL THEN
        RAISE EXCEPTION 'invalid_call: element %: the field "%" is a part of the stored limit "%"', nth, field, element ->> 'name'
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave it out, or give the whole rule to a function with _with.';
      END IF;
      element := element || rule;
    END IF;
    elements := elements || jsonb_build_array(element);
  END LOOP;
  RETURN elements;
END
$function$;
