-- rate_limit_validate_item(integer, text, text, text, double precision, interval, double precision, double precision, interval, integer, integer)
-- SHA-256: 3448cd60751163bc3cbab46b693a26fa8db0757e2d07ada7f00b1a2a864296d6

-- Checks one bucket and its limit, with options of SQL types: for rate_limit and for each element of rate_limit_all.
-- `element` is the number of the element, for the message; NULL if there is only one.
CREATE OR REPLACE FUNCTION public.rate_limit_validate_item(
  element integer, name text, key text, kind text, rate double precision, period interval, capacity double precision,
  max_reserved double precision, start interval, resolution integer, shards integer
) RETURNS void LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  which CONSTANT text := coalesce('element ' || element || ': ', '');
  reason text;
BEGIN
  IF coalesce(octet_length(name) NOT BETWEEN 1 AND 255, true) THEN
    RAISE EXCEPTION 'invalid_name: %a limit''s name has 1 to 255 bytes, not %',
      which, coalesce(octet_length(name)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the limit a short name.';
  END IF;
  IF coalesce(octet_length(key) > 1024, true) THEN
    RAISE EXCEPTION 'invalid_key: %a key has at most 1024 bytes, not %', which, coalesce(octet_length(key)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten or hash the key; the empty key is the global bucket.';
  END IF;
  -- So that the lengths fit into microseconds; rate_limit_invalid checks the exact bounds. NULL is not true.
  IF NOT coalesce(abs(extract(epoch FROM period)) < 1e12, false) OR NOT abs(extract(epoch FROM start)) < 1e12 THEN
    RAISE EXCEPTION 'invalid_limit: %the period is not between 1 microsecond and 36525 days, or start is out of reach', which
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the period as an interval, like ''1 minute''.';
  END IF;
  IF extract(year FROM period) <> 0 OR extract(month FROM period) <> 0 THEN
    RAISE EXCEPTION 'invalid_limit: %the period % has months or years, which have no fixed length', which, period
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it in days or shorter units, like ''30 days''.';
  END IF;
  IF extract(year FROM start) <> 0 OR extract(month FROM start) <> 0 THEN
    RAISE EXCEPTION 'invalid_limit: %the start % has months or years, which have no fixed length', which, start
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it in days or shorter units, like ''30 days''.';
  END IF;
  reason := public.rate_limit_invalid(
    kind,
    rate,
    (extract(epoch FROM period) * 1000000)::bigint,
    capacity,
    max_reserved,
    (extract(epoch FROM start) * 1000000)::bigint,
    resolution,
    shards
  );
  IF reason IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_limit: %', which || reason
      USING ERRCODE = 'invalid_parameter_value', HINT = 'See the kinds of limits and their options.';
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_validate_item IS
  'Raises an error if a name, a key or the options of a limit are not valid.';
