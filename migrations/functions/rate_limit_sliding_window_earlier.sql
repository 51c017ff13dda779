-- rate_limit_sliding_window_earlier(double precision, bigint, double precision[], bigint, double precision, bigint, bigint, integer)
-- SHA-256: 6f76d3167a5bd05afec1cab06d3ee2f99386df389c393f4061a5f176f4387bac

-- Returns `earlier_counts` at `now`.
CREATE OR REPLACE FUNCTION public.rate_limit_sliding_window_earlier(
  value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision, period bigint,
  phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT ARRAY[period, phase, rate]::double precision[] || CASE
    WHEN resolution > 1
    THEN (public.rate_limit_sliding_window_counts(value, ts, earlier_counts, now, period, phase, resolution))[2:]
    WHEN ts >= public.rate_limit_window_start(now, phase, period) THEN earlier_counts[4:]
    WHEN ts >= public.rate_limit_window_start(now, phase, period) - period THEN ARRAY[value]
    ELSE ARRAY[0::double precision]
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_sliding_window_earlier IS
  'Returns the earlier counts of a sliding window at a time; inlined.';
