-- rate_limit_counts_after(text, double precision, bigint, double precision[], bigint, double precision, bigint, bigint, integer)
-- SHA-256: 560b0a4d3e0b645be9fb311b219da2d2792768b216dcb2fe3731ac089bf7f48e

CREATE OR REPLACE FUNCTION public.rate_limit_counts_after(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, phase bigint, resolution integer
) RETURNS double precision[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_earlier(value, ts, earlier_counts, now, rate, period, phase, resolution)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_counts_after IS 'Returns the earlier counts of a row after tokens were taken; inlined.';
