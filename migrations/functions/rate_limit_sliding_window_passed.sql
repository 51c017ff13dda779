-- rate_limit_sliding_window_passed(bigint, bigint, bigint, integer)
-- SHA-256: e9c5c28eb31281d7eb34c08d4b98ed50ff954933a0abc5825a1f4a720c84a569

-- sliding_window: at most `rate` in any `period`, counted in `resolution` sub-intervals. The current one and those before it
-- count in full; the oldest is weighted by how much of it is still in the window:
--   used = c[0] + .. + c[n-1] + c[n] * (1 - fraction of the current sub-interval that has passed)
-- `value` is c[0]; `earlier_counts` holds the limit's period, phase and rate, then c[1] to c[n]. `ts` is the time of the last
-- write. With n = 1 this is the two-counter form.
-- Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017 (two counters);
-- sub-intervals as in ClassDojo's sliding counters.
--
-- The common case n = 1 is an expression that the planner inlines; larger n are computed by a function.

-- Returns the fraction of the current sub-interval that has passed at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_passed(now bigint, period bigint, phase bigint, resolution integer) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ((now - public.rate_limit_window_start(now, phase, period)) * resolution % period)::double precision / period
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_passed IS
  'Returns the fraction of the current sub-interval of a sliding window that has passed; inlined.';
