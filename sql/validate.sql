-- Returns why the options of a limit are not valid, for callers from SQL. The client checks the same before it sends anything.
CREATE OR REPLACE FUNCTION public.rate_limit_invalid(
  kind text, rate double precision, period bigint, capacity double precision, max_reserved double precision, start bigint,
  resolution integer, shards integer
) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  every CONSTANT text := split_part(kind, ' ', 2) || ' ' || split_part(kind, ' ', 3);
  zone CONSTANT text := split_part(kind, ' ', 4);
  anchor CONSTANT text := split_part(kind, ' ', 5);
  reason text;
BEGIN
  -- NaN and infinity sort above all other numbers; NULL is not true. The bounds keep every product finite.
  IF kind = 'concurrency' AND NOT coalesce(rate BETWEEN 1 AND 1000 AND rate = floor(rate), false) THEN
    reason := format('the capacity %s is not a whole number of slots from 1 to 1000', coalesce(rate::text, 'NULL'));
  ELSIF NOT coalesce(rate BETWEEN 1e-100 AND 1e100, false) THEN
    reason := format('the rate %s is not a number from 1e-100 to 1e100', coalesce(rate::text, 'NULL'));
  ELSIF NOT coalesce(period BETWEEN 1 AND 3155760000000000, false) THEN
    reason := format('the %s %s is not between 1 microsecond and 36525 days',
      CASE kind WHEN 'concurrency' THEN 'lease' ELSE 'period' END, coalesce(period || ' microseconds', 'NULL'));
  ELSIF NOT (capacity BETWEEN 0 AND 1e100) THEN
    reason := format('the capacity %s is not a number from 0 to 1e100', capacity);
  ELSIF NOT (max_reserved BETWEEN 0 AND 1e100) THEN
    reason := format('max_reserved %s is not a number from 0 to 1e100', max_reserved);
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
  ELSIF kind LIKE 'calendar_window %' AND public.rate_limit_calendar_invalid(every, zone, anchor) IS NOT NULL THEN
    reason := public.rate_limit_calendar_invalid(every, zone, anchor);
  ELSIF kind = public.rate_limit_calendar_kind(every, zone, anchor) THEN
    reason := NULL;
  ELSIF kind = 'concurrency' THEN
    IF capacity IS NOT NULL OR max_reserved IS NOT NULL OR start IS NOT NULL OR resolution IS NOT NULL OR shards > 1 THEN
      reason := 'max_reserved, start, resolution and shards do not apply to a concurrency limit';
    END IF;
  ELSIF kind = 'gate' THEN
    reason := 'a gate has no tokens: name it in rate_limit_all, or call rate_limit_blocked';
  ELSE
    reason := format(
      'unknown kind "%s"; the kinds are token_bucket, fixed_window, sliding_window, calendar_window, concurrency, gate',
      coalesce(kind, 'NULL'));
  END IF;
  RETURN reason;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_invalid IS 'Returns why the options of a limit are not valid, or NULL.';

CREATE OR REPLACE FUNCTION public.rate_limit_validate(
  kind text, rate double precision, period bigint, capacity double precision, max_reserved double precision, start bigint,
  resolution integer, shards integer
) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  reason CONSTANT text :=
    public.rate_limit_invalid(kind, rate, period, capacity, max_reserved, start, resolution, shards);
BEGIN
  IF reason IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_limit: %', reason
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a value that the message allows, and no options of other kinds.';
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_validate IS 'Raises an error if the options of a limit are not valid.';
