-- rate_limit_sliding_window_value(double precision, bigint, double precision[], bigint, bigint, bigint, integer)
-- SHA-256: f4c3e91d7535615708b483b0ea4fefabe843c64a7a8f764860e070dafc720347

-- Returns c[0] at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_value(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, period bigint, phase bigint,
  resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN resolution > 1
    THEN (public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution))[1]
    ELSE public.rate_limit_two_counters_now(value, ts, public.rate_limit_window_start(now, phase, period))
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_value IS 'Returns the newest count of a sliding window at a time; inlined.';
