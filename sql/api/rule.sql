-- Returns the rule of a call, given as SQL types, in the units that _decide takes; raises an error if it is not valid.
CREATE OR REPLACE FUNCTION rate_limit._rule(
  name text, key text, kind text, rate double precision, period interval, capacity double precision,
  max_reserved double precision, start interval, resolution integer, shards integer
) RETURNS rate_limit.definitions LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
BEGIN
  IF kind = 'calendar_window' THEN
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
  PERFORM rate_limit._validate_item(NULL, name, key, kind, rate, period, capacity, max_reserved, start, resolution, shards);
  RETURN CAST(
    ROW(
      name, NULL, kind, rate, (extract(epoch FROM period) * 1000000)::bigint, capacity, max_reserved,
      (extract(epoch FROM start) * 1000000)::bigint, resolution, shards, NULL, NULL)
    AS rate_limit.definitions);
END
$function$;
