-- rate_limit_write_all(rate_limits[], rate_limits[])
-- SHA-256: 514ef706aa4fad43c1eacec0720284e3fbd48e7c5ba3c64c2c4f807ae59e3fde

-- Inserts the rows that had no `ts` before, and then updates the others, each if it has not changed since; it stops at the first
-- that has. Rows are locked in the order given. Returns which were written, counted from 1.
--
-- Few rows are quicker one by one. So are many under READ COMMITTED, where an UPDATE of all of them would go on after a row that
-- has changed, and that row could not be waited for then: it comes before those that are locked.
CREATE OR REPLACE FUNCTION public.rate_limit_write_all(before public.rate_limits[], after public.rate_limits[])
RETURNS integer[]
LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_column
DECLARE
  rows CONSTANT integer := cardinality(before);
  a public.rate_limits;
  b public.rate_limits;
  written integer[] := '{}';
BEGIN
  FOR i IN 1 .. rows LOOP
    CONTINUE WHEN (before[i]).ts IS NOT NULL;
    a := after[i];
    INSERT INTO public.rate_limits (name, key, value, ts, idle_at, earlier_counts)
    VALUES (a.name, a.key, a.value, a.ts, a.idle_at, a.earlier_counts)
    ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
    IF NOT FOUND THEN
      RETURN written;
    END IF;
    written := written || i;
  END LOOP;
  IF cardinality(written) = rows THEN
    RETURN written;
  END IF;
  IF rows <= 8 OR current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN
    FOR i IN 1 .. rows LOOP
      b := before[i];
      CONTINUE WHEN b.ts IS NULL;
      a := after[i];
      UPDATE public.rate_limits AS r
      SET value = a.value, ts = a.ts, idle_at = a.idle_at, earlier_counts = a.earlier_counts
      WHERE r.name = b.name AND r.key = b.key AND r.shard = 0 AND r.value = b.value AND r.ts = b.ts
        AND r.earlier_counts IS NOT DISTINCT FROM b.earlier_counts;
      IF NOT FOUND THEN
        RETURN written;
      END IF;
      written := written || i;
    END LOOP;
    RETURN written;
  END IF;
  -- ANY, because `=` on the first column of the key would let the planner read a whole small table in its order, and keep to that
  -- when the table has grown.
  WITH u AS (
    UPDATE public.rate_limits AS r
    SET value = a.value, ts = a.ts, idle_at = a.idle_at, earlier_counts = a.earlier_counts
    FROM public.rate_limit_pairs(before, after) AS a
    WHERE r.name = ANY (ARRAY[a.name]) AND r.key = a.key AND r.shard = 0 AND r.value = a.value_before AND r.ts = a.ts_before
      AND r.earlier_counts IS NOT DISTINCT FROM a.counts_before
    RETURNING nth
  )
  SELECT written || array_agg(nth) INTO written FROM u;
  RETURN written;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_write_all IS 'Writes the rows of a batch that have not changed.';
