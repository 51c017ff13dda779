-- rate_limit_fixed_window_value(double precision, bigint, bigint, double precision, bigint, double precision, bigint)
-- SHA-256: b46861e55174364d8f14b2d4c1b4df141d4aaae42766c2de6c3cd8da2e90a2d4

-- Returns the balance at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_fixed_window_value(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision, phase bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT least(
    value + rate * greatest(
      (public.rate_limit_window_start(now, phase, period) - public.rate_limit_window_start(ts, phase, period)) / period, 0),
    capacity)
$function$;
COMMENT ON FUNCTION public.rate_limit_fixed_window_value IS 'Returns the balance of a fixed window at a time; inlined.';
