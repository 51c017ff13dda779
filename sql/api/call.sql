-- Decides one call on one bucket under a rule of _rule or _definition. A gate is only read. The op is that of _decide, or
-- `enforce`, which raises RL429 if the call is denied, or `acquire`, which takes slots under a new lease.
CREATE OR REPLACE FUNCTION rate_limit._call(
  op text, key text, rule rate_limit.definitions, count double precision, reserve boolean, at timestamp with time zone,
  OUT ok boolean, OUT retry_after interval, OUT value double precision, OUT lease_id bigint
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  decided record;
  taken double precision[];
BEGIN
  IF at NOT BETWEEN timestamptz '1800-01-01 00:00:00Z' AND timestamptz '2200-01-01 00:00:00Z' THEN
    RAISE EXCEPTION 'invalid_limit: the clock % is not between the years 1800 and 2199', at
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
  IF rule.kind = 'gate' THEN
    count := 0;
  ELSIF rule.kind = 'concurrency' AND op IN ('limit', 'enforce') THEN
    RAISE EXCEPTION 'invalid_lease: the lease NULL: the concurrency limit "%" has slots, which are held under a lease', rule.name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call acquire, and release.';
  END IF;
  IF op IN ('limit', 'enforce') AND at IS NULL THEN
    -- The column has a collation of its own, with which a session would compile all functions again.
    taken := rate_limit._decide_one(
      rule.name COLLATE "default", key, rule.kind, rule.rate, rule.period, coalesce(rule.capacity, rule.rate), rule.max_reserved,
      rule.start, coalesce(rule.resolution, 1), rule.shards, count, 1, reserve);
    ok := taken[1] = 1;
    retry_after := taken[2] * interval '1 microsecond';
    value := taken[3];
  ELSE
    IF op = 'acquire' THEN
      IF rule.kind <> 'concurrency' THEN
        RAISE EXCEPTION 'no_slots: the limit "%" is a %, which has no slots', rule.name, split_part(rule.kind, ' ', 1)
          USING ERRCODE = 'invalid_parameter_value', HINT = 'Call limit, or name a concurrency limit.';
      END IF;
      lease_id := floor(random() * 9007199254740990)::bigint + 2;
    END IF;
    -- NULL selects the defaults, and is faster. This is an assignment because the server logs the text of a failing SELECT.
    decided := rate_limit._decide(
      ARRAY[rule.kind], ARRAY[rule.rate], ARRAY[rule.period], ARRAY[rule.capacity], ARRAY[rule.max_reserved], ARRAY[rule.start],
      ARRAY[rule.resolution], CASE WHEN rule.shards <> 1 THEN ARRAY[rule.shards] END, ARRAY[rule.name COLLATE "default"],
      ARRAY[key], NULL, NULL, ARRAY[count], CASE WHEN op = 'check' THEN ARRAY[op] END, CASE WHEN reserve THEN ARRAY[reserve] END,
      NULL, NULL, CASE WHEN at IS NOT NULL THEN ARRAY[(extract(epoch FROM at) * 1000000)::bigint] END,
      CASE WHEN op = 'acquire' THEN ARRAY[lease_id] END);
    ok := decided.call_admitted IS NULL OR decided.call_admitted[1] = 1;
    retry_after := decided.call_waits[1] * interval '1 microsecond';
    value := decided.item_values[1];
  END IF;
  IF NOT ok THEN
    lease_id := NULL;
    IF op = 'enforce' THEN
      RAISE EXCEPTION 'rate limit "%" exceeded', rule.name
        USING
          ERRCODE = 'RL429',
          DETAIL = format('Retry after %s seconds.', extract(epoch FROM retry_after)::numeric(30, 6)),
          HINT = 'Wait, then try again.';
    END IF;
  END IF;
END
$function$;
