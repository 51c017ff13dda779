-- For how many microseconds a call waits that took `amount` tokens of a token bucket and left `value` at a time that is `ahead`
-- of the clock; NULL if it does not have to wait.
CREATE OR REPLACE FUNCTION public.rate_limit_reserved_wait(
  value double precision,
  ahead bigint,
  amount double precision,
  rate double precision,
  period double precision,
  capacity double precision
)
RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $function$
  SELECT CASE
    WHEN value < - (1e-9 + 1e-14 * capacity)
    THEN least(
      pg_catalog.ceil(
        - value * period / rate
        - least(0.001, (1e-9 + 1e-14 * greatest(capacity, pg_catalog.abs(value + amount))) / 2 * period / rate)),
      1e18
    )::bigint + greatest(ahead, 0)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_reserved_wait IS
  'Returns the wait of a call that reserved tokens, in microseconds; inlined.';
