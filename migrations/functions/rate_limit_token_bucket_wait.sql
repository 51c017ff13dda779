-- rate_limit_token_bucket_wait(double precision, double precision, double precision, bigint)
-- SHA-256: 3af34ee245ab31c75a96c6332d258152ceb17147ba05730fd46095edd787c33d

-- Returns the microseconds until the balance has grown by `missing`. The rounding stays below `tolerance`.
CREATE OR REPLACE FUNCTION public.rate_limit_token_bucket_wait(
  missing double precision, tolerance double precision, rate double precision, period bigint
) RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT pg_catalog.ceil(missing * period / rate - least(0.001, tolerance / 2 * period / rate))
$function$;
COMMENT ON FUNCTION public.rate_limit_token_bucket_wait IS 'Returns the time until a token bucket has refilled; inlined.';
