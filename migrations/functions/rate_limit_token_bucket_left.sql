-- rate_limit_token_bucket_left(double precision, bigint, bigint, double precision, bigint, double precision, double precision)
-- SHA-256: b6705310dcc10a6e723f85c0678beb7ef2de88bb14e169acbf49b977663e0be2

-- Returns the balance of a token bucket after `amount` was taken at `now`. Not inlined: Citus copies and sends the text of each
-- expression of a statement with each execution, so a call is faster there than its expression.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_left(
  value double precision, ts bigint, now bigint, rate double precision, period bigint, capacity double precision,
  amount double precision
) RETURNS double precision LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $function$
BEGIN
  RETURN public.rate_limit_token_bucket_value(value, ts, now, rate, period, capacity) - amount;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_left IS 'Returns the balance of a token bucket after tokens were taken.';
