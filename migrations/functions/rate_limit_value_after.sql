-- rate_limit_value_after(text, double precision, bigint, double precision[], bigint, double precision, bigint, double precision, bigint, integer, double precision)
-- SHA-256: 7e1a8630e7a628569305282ec8cd73010a9973fe728e42799325455b014ede37

-- The functions rate_limit_.._after return one column each of a row of this kind and grid, after `amount` tokens were taken
-- from it at `now`, even if it has fewer. They are expressions for a statement on many rows; rate_limit_take_from does the same
-- for one row.
CREATE OR REPLACE FUNCTION public.rate_limit_value_after(
  kind text, value double precision, ts bigint, earlier_counts double precision[], now bigint, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer, amount double precision
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'token_bucket' THEN public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount
    WHEN 'fixed_window' THEN public.rate_limit_fixed_window_value(value, ts, now, rate, period, capacity, phase) - amount
    WHEN 'sliding_window'
    THEN public.rate_limit_sliding_window_value(value, ts, earlier_counts, now, period, phase, resolution) + amount
    ELSE public.rate_limit_calendar_window_value(kind, value, ts, now, rate, capacity) - amount
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_value_after IS 'Returns the value of a row after tokens were taken; inlined.';
