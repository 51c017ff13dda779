-- One plain call on one bucket without a look at anything else: `times` calls for `count` tokens of a token bucket. What the
-- UPDATE cannot decide goes to rate_limit_decide. Results as there: {admitted, wait, value}, and for how many microseconds
-- it waited for the row; one array, because that is quicker than a row.
CREATE OR REPLACE FUNCTION public.rate_limit_take(
  name text,
  key text,
  rate double precision,
  period double precision,
  capacity double precision,
  count double precision,
  times integer
)
RETURNS double precision[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $function$
#variable_conflict use_column
DECLARE
  now bigint := public.rate_limit_clock();
  amount CONSTANT double precision := count * times;
  tolerance CONSTANT double precision := 1e-9 + 1e-14 * capacity;
  needed CONSTANT double precision := amount - tolerance;
  left_over double precision;
  waited bigint; -- with the time of the UPDATE itself
  decided record;
BEGIN
  IF times >= 1 AND
    --@include plain_limit
  THEN
    UPDATE public.rate_limits AS bucket
    SET
      --@include token_bucket.taken
    WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = 0
      AND bucket.shards = 1 AND bucket.earlier_counts IS NULL
      --@include token_bucket.enough
    RETURNING bucket.value INTO left_over;
    IF FOUND THEN
      -- Somebody had the row: see rate_limit_decide.
      waited := public.rate_limit_clock() - now;
      IF waited > 1000 THEN
        now := now + waited;
        UPDATE public.rate_limits AS bucket
        SET
          --@include token_bucket.kept_waiting
        WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = 0
        RETURNING bucket.value INTO left_over;
      END IF;
      RETURN ARRAY[times, NULL, CASE WHEN abs(left_over) <= tolerance THEN 0 ELSE left_over END, waited];
    END IF;
  END IF;
  SELECT d.*
  INTO decided
  FROM public.rate_limit_decide(
    ARRAY['token_bucket'], ARRAY[rate], ARRAY[period::bigint], ARRAY[capacity], NULL, NULL, NULL, NULL,
    ARRAY[rate_limit_take.name], ARRAY[rate_limit_take.key],
    ARRAY[1], NULL, ARRAY[count], NULL, NULL, NULL, ARRAY[times], NULL
  ) AS d;
  RETURN ARRAY[decided.call_admitted[1], decided.call_waits[1], decided.item_values[1], NULL];
END
$function$;
