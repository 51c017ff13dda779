-- One call on one bucket without a look at anything else: `times` calls for `count` tokens of a token bucket, or one that
-- reserves them, from a bucket without shards. What the UPDATE cannot decide goes to rate_limit_decide. Results as there:
-- {admitted, wait, value}, and for how many microseconds it waited for the row, if the UPDATE decided; one array, because
-- that is quicker than a row.
CREATE OR REPLACE FUNCTION public.rate_limit_take(
  name text,
  key text,
  rate double precision,
  period double precision,
  capacity double precision,
  count double precision,
  times integer,
  shards integer,
  reserves boolean DEFAULT false,
  max_reserved double precision DEFAULT NULL
)
RETURNS double precision[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET jit = off
AS $function$
#variable_conflict use_column
DECLARE
  began CONSTANT bigint := public.rate_limit_clock();
  now bigint := began;
  -- Of the row.
  rate CONSTANT double precision := rate_limit_take.rate / nullif(shards, 0);
  capacity CONSTANT double precision := rate_limit_take.capacity / nullif(shards, 0);
  amount CONSTANT double precision := count * times;
  tolerance CONSTANT double precision := 1e-9 + 1e-14 * capacity;
  needed CONSTANT double precision :=
    CASE
      WHEN reserves
      THEN
        --@include needed_to_reserve
      ELSE amount - tolerance
    END;
  chosen integer := 0;
  held double precision; -- the chosen row
  of_both double precision; -- that and the other one drawn
  locks_first boolean := false; -- as in rate_limit_decide
  draws integer := 0;
  is_hot boolean := false;
  holds_row boolean := false; -- which has too little
  left_over double precision;
  left_at bigint;
  waited bigint; -- with the time of the UPDATE itself
  decided record;
BEGIN
  IF times >= 1 AND shards BETWEEN 1 AND 1000 AND (NOT reserves OR (times = 1 AND shards = 1))
    AND coalesce(max_reserved BETWEEN 0 AND 1e100, true) AND
    --@include plain_limit
  THEN
    IF shards > 1 THEN
      locks_first := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
      LOOP
        --@include draw_and_choose
        EXIT WHEN NOT locks_first OR chosen IS NULL;
        IF held < 5 * amount THEN
          chosen := NULL;
          EXIT;
        END IF;
        -- An UPDATE that waits and then finds too little keeps the row locked, and the rows of the other shards cannot be
        -- waited for then. So one is looked for that is free, or waited for if it has many times what is asked.
        PERFORM
        FROM public.rate_limits AS bucket
        WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = chosen
        FOR NO KEY UPDATE SKIP LOCKED;
        EXIT WHEN FOUND;
        draws := draws + 1;
        IF draws = 4 THEN
          chosen := CASE WHEN held >= 33 * amount THEN chosen END;
          EXIT;
        END IF;
      END LOOP;
    END IF;
    -- Several calls in one: the row is hot. Its versions pile up while some transaction holds an old snapshot, and a plain
    -- UPDATE looks at all of them, oldest first. So the newest is found from the other end of the index. Not under READ
    -- COMMITTED: an UPDATE by ctid that waits for the row does not find the new version. YugabyteDB has no ctid.
    IF times > 1 THEN
      is_hot := current_setting('transaction_isolation') IN ('repeatable read', 'serializable')
        AND version() NOT LIKE '%-YB-%';
    END IF;
    FOR attempt IN 1 .. 3 LOOP
      IF is_hot THEN
        UPDATE public.rate_limits AS bucket
        SET
          --@include token_bucket.taken
        WHERE bucket.ctid = (
          SELECT r.ctid
          FROM public.rate_limits AS r
          WHERE r.name = rate_limit_take.name AND r.key = rate_limit_take.key AND r.shard BETWEEN chosen AND chosen
          ORDER BY r.shard DESC
          LIMIT 1
        ) AND
          --@include wanted
      ELSE
        UPDATE public.rate_limits AS bucket
        SET
          --@include token_bucket.taken
        WHERE
          --@include wanted
      END IF;
      waited := public.rate_limit_clock() - now;
      EXIT WHEN left_at IS NOT NULL OR waited <= 1000;
      now := now + waited; -- Now the row is locked.
    END LOOP;
    IF left_at IS NOT NULL THEN
      -- Another transaction had locked the row and left it as it was: see rate_limit_decide.
      IF waited > 1000 THEN
        now := now + waited;
        waited := 0;
        UPDATE public.rate_limits AS bucket
        SET
          --@include token_bucket.kept_waiting
        WHERE bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = chosen
        RETURNING bucket.value, bucket.ts INTO left_over, left_at;
      END IF;
      RETURN ARRAY[
        times,
        public.rate_limit_reserved_wait(left_over, left_at - now, amount, rate, period, capacity),
        public.rate_limit_left_over(left_over, tolerance, shards, amount, of_both),
        now + waited - began
      ];
    END IF;
    holds_row := locks_first AND chosen IS NOT NULL;
  END IF;
  -- An assignment, because the server logs the text of a SELECT that fails.
  decided := public.rate_limit_decide(
    ARRAY['token_bucket'], ARRAY[rate_limit_take.rate], ARRAY[period::bigint], ARRAY[rate_limit_take.capacity],
    ARRAY[max_reserved], NULL, NULL, CASE WHEN shards <> 1 THEN ARRAY[shards] END, ARRAY[rate_limit_take.name], ARRAY[rate_limit_take.key],
    ARRAY[1], NULL, ARRAY[count], NULL, CASE WHEN reserves THEN ARRAY[true] END, NULL,
    ARRAY[times], NULL, holds_row
  );
  RETURN ARRAY[decided.call_admitted[1], decided.call_waits[1], decided.item_values[1], NULL];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take IS
  'Decides calls on one token bucket with a single UPDATE; called by the client.';

--@ part draw_and_choose
SELECT p.*
INTO chosen, held, of_both
FROM (
  SELECT
    rate_limit_take.name AS name,
    rate_limit_take.key AS key,
    rate_limit_take.shards AS shards,
    --@include drawn
  OFFSET 0
) AS a
CROSS JOIN LATERAL (
  --@include of_two
) AS p;

--@ part wanted: the row, if it has enough
bucket.name = rate_limit_take.name AND bucket.key = rate_limit_take.key AND bucket.shard = chosen
AND bucket.shards = rate_limit_take.shards AND bucket.earlier_counts IS NULL
--@include token_bucket.enough
-- After a wait the row is locked. The third attempt no longer looks at the time: a busy machine may be slow each time.
AND (attempt = 3 OR public.rate_limit_clock() - now <= 1000)
RETURNING bucket.value, bucket.ts INTO left_over, left_at;
