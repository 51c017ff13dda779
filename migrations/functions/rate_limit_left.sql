-- rate_limit_left(text, double precision, bigint, double precision[], bigint, double precision, bigint, double precision, bigint, integer)
-- SHA-256: bbb335c7ad36fa51be542377014cedf6bf5e13b02081cff08ab0d513a3e09bec

-- Returns the tokens that are left at `now`; negative while tokens are owed.
CREATE OR REPLACE FUNCTION public.rate_limit_left(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket' THEN public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity)
    WHEN 'fixed_window' THEN public.rate_limit_fixed_window_value(value, ts, now, rate, period, capacity, phase)
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_left_at(value, ts, earlier_counts, now, rate, period, phase, resolution)
    ELSE public.rate_limit_calendar_window_value(kind, value, ts, now, rate, capacity)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_left IS 'Returns the tokens that are left in a bucket at a time; inlined.';
