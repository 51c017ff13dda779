-- rate_limit_calendar_window_value(text, double precision, bigint, bigint, double precision, double precision)
-- SHA-256: 6e31d24df2c8b8e2e4b4758e71ebc6c98e53080333cb26d5069f31f2f18b128d

-- Returns the balance at `now`; NULL if the kind is not a calendar window.
CREATE OR REPLACE FUNCTION public.rate_limit_calendar_window_value(
  kind text, value double precision, ts bigint, now bigint, rate double precision, capacity double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  nth CONSTANT bigint := public.rate_limit_calendar_nth(kind, now);
BEGIN
  RETURN least(
    value + rate * CASE
      WHEN ts < public.rate_limit_calendar_start(kind, nth) THEN nth - public.rate_limit_calendar_nth(kind, ts) ELSE 0
    END,
    capacity);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_calendar_window_value IS 'Returns the balance of a calendar window at a time.';
