-- rate_limit_two_counters_now(double precision, bigint, bigint)
-- SHA-256: bb2be88dd8e6c5d17c20e05f39d038aa8c71c1bea9283a0b4e9622bf67e91673

-- The two counters of n = 1, in the window that began at `started`: c[0], c[1], and what they leave.
CREATE OR REPLACE FUNCTION public.rate_limit_two_counters_now(value double precision, ts bigint, started bigint)
RETURNS double precision LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE WHEN ts >= started THEN value ELSE 0 END
$function$;
COMMENT ON FUNCTION public.rate_limit_two_counters_now IS 'Returns the count of the current window; inlined.';
