-- rate_limit_fixed_window_wait(double precision, double precision, bigint, double precision, bigint, bigint)
-- SHA-256: 1aaa3727cb05c0c0bfa6a2854da20a86692e0600f14520c17fe8d13e1d2c1937

-- Returns the microseconds from `now` until the balance has grown by `missing`.
CREATE OR REPLACE FUNCTION public.rate_limit_fixed_window_wait(
  missing double precision, tolerance double precision, now bigint, rate double precision, period bigint, phase bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT public.rate_limit_window_start(now, phase, period) - now
    + greatest(pg_catalog.ceil((missing - tolerance) / rate), 1) * period
$function$;
COMMENT ON FUNCTION public.rate_limit_fixed_window_wait IS 'Returns the time until a fixed window has refilled; inlined.';
