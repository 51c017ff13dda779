-- The balance of a token bucket at `now`, if the capacity did not bound it. A clock that is behind the row takes nothing
-- away. Like the functions beside it, the planner replaces a call by its expression, so that a statement stays short: the
-- server logs the text of a statement that fails.
CREATE OR REPLACE FUNCTION public.rate_limit_flow(
  value double precision,
  ts bigint,
  now bigint,
  rate double precision,
  period double precision
)
RETURNS double precision
LANGUAGE sql IMMUTABLE
AS $function$
  SELECT value + greatest(now - ts, 0)::double precision * rate / period
$function$;
COMMENT ON FUNCTION public.rate_limit_flow IS
  'Returns the balance of a token bucket at a time, not bounded by its capacity; inlined.';
