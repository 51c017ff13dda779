-- rate_limit_sliding_window_value(double precision, bigint, double precision[], bigint, bigint, bigint, integer)
-- SHA-256: a8513f6c82fe85a376a87c74cf5bbdf82c806614b3f0b4a63e7807204e3c45c4

-- Returns c[0] at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_value(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN (public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution))[1]
    WHEN ts >= public.rate_limit_window_start(now, phase, period) THEN value
    ELSE 0
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_value IS 'Returns the newest count of a sliding window at a time; inlined.';
