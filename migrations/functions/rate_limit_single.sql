-- rate_limit_single(text, text, text, text, double precision, interval, double precision, double precision, boolean, double precision, interval, integer, integer, timestamp with time zone)
-- SHA-256: c0d3f69940c343363ca6a78d997799b79fc87f48fe5b22a5c3ccb42e43563eda

-- One call on one bucket, for the functions below: options as SQL types, then the arrays of rate_limit_decide.
CREATE OR REPLACE FUNCTION public.rate_limit_single(
  op text,
  name text,
  key text,
  kind text,
  rate double precision,
  period interval,
  capacity double precision,
  count double precision,
  reserve boolean,
  max_reserved double precision,
  start interval,
  resolution integer,
  shards integer,
  at timestamp with time zone,
  OUT ok boolean,
  OUT retry_after interval,
  OUT value double precision
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET jit = off
AS $function$
DECLARE
  decided record;
BEGIN
  IF coalesce(octet_length(name) NOT BETWEEN 1 AND 255, true) THEN
    RAISE EXCEPTION 'invalid_name: a limit''s name has 1 to 255 bytes, not %', coalesce(octet_length(name)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the limit a short name.';
  END IF;
  IF coalesce(octet_length(key) > 1024, true) THEN
    RAISE EXCEPTION 'invalid_key: a key has at most 1024 bytes, not %', coalesce(octet_length(key)::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Shorten or hash the key; the empty key is the global bucket.';
  END IF;
  -- So that they fit into microseconds; the finer bounds stand in rate_limit_validate. NULL is not true.
  IF NOT coalesce(abs(extract(epoch FROM period)) < 1e12, false) OR NOT abs(extract(epoch FROM start)) < 1e12 THEN
    RAISE EXCEPTION 'invalid_limit: the period is not between 1 microsecond and 36525 days, or start is out of reach'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the period as an interval, like ''1 minute''.';
  END IF;
  IF extract(year FROM period) <> 0 OR extract(month FROM period) <> 0 THEN
    RAISE EXCEPTION 'invalid_limit: the period % has months or years, which have no fixed length', period
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it in days or shorter units, like ''30 days''.';
  END IF;
  IF extract(year FROM start) <> 0 OR extract(month FROM start) <> 0 THEN
    RAISE EXCEPTION 'invalid_limit: the start % has months or years, which have no fixed length', start
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Write it in days or shorter units, like ''30 days''.';
  END IF;
  IF at NOT BETWEEN timestamptz '1800-01-01 00:00:00Z' AND timestamptz '2200-01-01 00:00:00Z' THEN
    RAISE EXCEPTION 'invalid_limit: the clock % is not between the years 1800 and 2199', at
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
  PERFORM public.rate_limit_validate(
    kind,
    rate,
    (extract(epoch FROM period) * 1000000)::bigint,
    capacity,
    max_reserved,
    (extract(epoch FROM start) * 1000000)::bigint,
    resolution,
    shards
  );
  -- NULL stands for what is usual, and is quicker. An assignment, because the server logs the text of a failing SELECT.
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
  'Decides one call on one bucket with options as SQL types; called by rate_limit and the functions beside it.';
