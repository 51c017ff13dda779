-- rate_limit_taken(double precision, bigint, bigint, double precision, double precision, double precision, double precision)
-- SHA-256: c3ca223a9268c66dc5971debf543d46ff2696d5150b5ce5b875e98c6ab437f5b

-- The row of a token bucket once `amount` is taken. It reads the clock itself, once, so that an UPDATE that has waited for a row
-- takes the tokens after the wait; `earlier` is read before, and bounds it if the clock steps back. (STABLE, because the planner
-- replaces no call of a VOLATILE function in FROM.)
CREATE OR REPLACE FUNCTION public.rate_limit_taken(
  value double precision,
  ts bigint,
  earlier bigint,
  amount double precision,
  rate double precision,
  period double precision,
  capacity double precision
)
RETURNS TABLE (value_after double precision, ts_after bigint, idle_at bigint)
LANGUAGE sql STABLE
AS $function$
  SELECT t.value, t.ts, public.rate_limit_full_at(t.value, t.ts, rate, period, capacity)
  FROM (SELECT greatest(public.rate_limit_clock(), earlier) AS now OFFSET 0) AS c
  CROSS JOIN LATERAL (
    SELECT
      least(public.rate_limit_flow(rate_limit_taken.value, rate_limit_taken.ts, c.now, rate, period), capacity) - amount AS value,
      greatest(c.now, rate_limit_taken.ts) AS ts
  ) AS t
$function$;
COMMENT ON FUNCTION public.rate_limit_taken IS 'Returns the row of a token bucket after tokens are taken; inlined.';
