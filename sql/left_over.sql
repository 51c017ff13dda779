-- The balance to report after `amount` was taken: the row's, or for a sharded bucket an estimate by the two rows drawn.
CREATE OR REPLACE FUNCTION public.rate_limit_left_over(
  value double precision,
  tolerance double precision,
  shards integer,
  amount double precision,
  pair_balance double precision
)
RETURNS double precision
LANGUAGE sql IMMUTABLE
AS $function$
  SELECT CASE
    WHEN shards > 1 THEN greatest(pair_balance * shards / 2 - amount, value)
    WHEN pg_catalog.abs(value) <= tolerance THEN 0
    ELSE value
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_left_over IS 'Returns the balance to report after tokens were taken; inlined.';
