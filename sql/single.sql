-- Decides one call on one bucket, for rate_limit, rate_limit_check and rate_limit_enforce: converts options of SQL types to the
-- arrays of rate_limit_decide.
CREATE OR REPLACE FUNCTION public.rate_limit_single(
  op text, name text, key text, kind text, rate double precision, period interval, capacity double precision,
  count double precision, reserve boolean, max_reserved double precision, start interval, resolution integer, shards integer,
  at timestamp with time zone, OUT ok boolean, OUT retry_after interval, OUT value double precision
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  decided record;
  taken double precision[];
BEGIN
  IF kind = 'calendar_window' THEN
    kind := coalesce(public.rate_limit_calendar_kind_of(period), kind);
  END IF;
  PERFORM public.rate_limit_validate_item(NULL, name, key, kind, rate, period, capacity, max_reserved, start, resolution,
    shards);
  IF at NOT BETWEEN timestamptz '1800-01-01 00:00:00Z' AND timestamptz '2200-01-01 00:00:00Z' THEN
    RAISE EXCEPTION 'invalid_limit: the clock % is not between the years 1800 and 2199', at
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
  IF op = 'limit' AND at IS NULL THEN
    taken := public.rate_limit_decide_one(
      name, key, kind, rate, (extract(epoch FROM period) * 1000000)::bigint, coalesce(capacity, rate), max_reserved,
      (extract(epoch FROM start) * 1000000)::bigint, coalesce(resolution, 1), shards, count, 1, reserve);
    ok := taken[1] = 1;
    retry_after := taken[2] * interval '1 microsecond';
    value := taken[3];
    RETURN;
  END IF;
  -- NULL selects the defaults, and is faster. This is an assignment because the server logs the text of a failing SELECT.
  decided := public.rate_limit_decide(
    ARRAY[kind],
    ARRAY[rate],
    ARRAY[(extract(epoch FROM period) * 1000000)::bigint],
    ARRAY[capacity],
    ARRAY[max_reserved],
    ARRAY[(extract(epoch FROM start) * 1000000)::bigint],
    ARRAY[resolution],
    CASE WHEN shards <> 1 THEN ARRAY[shards] END,
    ARRAY[name],
    ARRAY[key],
    NULL,
    NULL,
    ARRAY[count],
    CASE WHEN op <> 'limit' THEN ARRAY[op] END,
    CASE WHEN reserve THEN ARRAY[reserve] END,
    NULL,
    NULL,
    CASE WHEN at IS NOT NULL THEN ARRAY[(extract(epoch FROM at) * 1000000)::bigint] END
  );
  ok := decided.call_admitted IS NULL OR decided.call_admitted[1] = 1;
  retry_after := decided.call_waits[1] * interval '1 microsecond';
  value := decided.item_values[1];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_single IS
  'Decides one call on one bucket with options as SQL types; called by rate_limit and its variants.';
