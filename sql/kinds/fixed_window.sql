-- fixed_window: `rate` tokens are granted at the start of each window of length `period`; unused tokens roll over up to
-- `capacity`. `value` is the balance, and `ts` the start of the window in which it was written.
-- The grid of windows is absolute, w(t) = floor((t - phase) / period): it is the same in every process, and after the row was
-- deleted. Without `start` the phase is derived from the bucket, so that the windows of many keys do not end together.
-- Source: the fixed window of Convex's rate limiter, with the grid made absolute.

-- Returns the start of the window that contains `at`. It applies % twice, because the remainder of a negative number is
-- negative.
CREATE OR REPLACE FUNCTION public.rate_limit_window_start(at bigint, phase bigint, period bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT at - ((at - phase % period) % period + period) % period
$function$;
COMMENT ON FUNCTION public.rate_limit_window_start IS 'Returns the start of the window that contains a time; inlined.';

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

-- Returns the time at which a bucket that holds `value` in the window of `now` will be full.
CREATE OR REPLACE FUNCTION public.rate_limit_fixed_window_idle_at(
  value double precision, now bigint, rate double precision, period bigint, capacity double precision, phase bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT public.rate_limit_window_start(now, phase, period)
    + least(greatest(pg_catalog.ceil((capacity - value) / rate - 1e-9), 0) * period, 1e18)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_fixed_window_idle_at IS 'Returns when a fixed window is full; inlined.';

-- Returns the microseconds from `now` until the balance has grown by `missing`.
CREATE OR REPLACE FUNCTION public.rate_limit_fixed_window_wait(
  missing double precision, tolerance double precision, now bigint, rate double precision, period bigint, phase bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT public.rate_limit_window_start(now, phase, period) - now
    + greatest(pg_catalog.ceil((missing - tolerance) / rate), 1) * period
$function$;
COMMENT ON FUNCTION public.rate_limit_fixed_window_wait IS 'Returns the time until a fixed window has refilled; inlined.';
