-- Returns the length of the present window of a calendar window and how long it lasts still, in microseconds. `windows` asks
-- for several: the length of the present one and those after it, and `filled_in` is the time until so many more have started.
-- `ends_in` is the time for which the answer stays true. `at` is the time in microseconds since the Unix epoch, for tests.
--   SELECT length FROM rate_limit.window('calendar_window 1 month Europe/Berlin 2026-01-01T00:00:00', 2629746000000);
CREATE OR REPLACE FUNCTION rate_limit.window(
  kind text, period bigint, windows double precision DEFAULT 1, at bigint DEFAULT NULL, OUT length bigint, OUT filled_in bigint,
  OUT ends_in bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  now CONSTANT bigint := coalesce(at, rate_limit._clock());
  nth bigint;
  filled_at bigint;
BEGIN
  PERFORM rate_limit._validate(kind, 1, period, NULL, NULL, NULL, NULL, 1);
  nth := rate_limit._calendar_nth(kind, now);
  filled_at := rate_limit._calendar_ahead(kind, nth, greatest(windows, 1), period);
  length := filled_at - rate_limit._calendar_start(kind, nth);
  filled_in := filled_at - now;
  ends_in := rate_limit._calendar_ahead(kind, nth, 1, period) - now;
END
$function$;
COMMENT ON FUNCTION rate_limit.window IS 'Returns the length of the present window of a calendar window; called by the client.';
