-- rate_limit_window_start(bigint, bigint, bigint)
-- SHA-256: 1f81fa5393225d693308dcbd01541db3a22fc16f2694b14d482e01a38d371617

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
