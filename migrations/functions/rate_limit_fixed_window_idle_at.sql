-- rate_limit_fixed_window_idle_at(double precision, bigint, double precision, bigint, double precision, bigint)
-- SHA-256: f0b29296d6472ed32f626c9b4f6317992c8b7f0abc7a377cb4453a613691a3ec

-- Returns the time at which a bucket that holds `value` in the window of `now` will be full.
CREATE OR REPLACE FUNCTION public.rate_limit_fixed_window_idle_at(
  value double precision, now bigint, rate double precision, period bigint, capacity double precision, phase bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT public.rate_limit_window_start(now, phase, period)
    + least(greatest(pg_catalog.ceil((capacity - value) / rate - 1e-9), 0) * period, 1e18)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_fixed_window_idle_at IS 'Returns when a fixed window is full; inlined.';
