-- rate_limit_decide_one(text, text, text, double precision, bigint, double precision, double precision, bigint, integer, integer, double precision, integer, boolean)
-- SHA-256: 27a67a1c8381fa0b1abd6d5e6dfba5898254b525a0a9ab818cae42b81cdaa749

-- Decides one call on one bucket, made `times` times: it reads the row, decides, and writes the row if it has not changed since.
-- Arguments and their meaning are those of rate_limit_decide, which decides what one row is not enough for.
--
-- Returns {admitted, wait, value, waited}: how many of the times were allowed; the wait in microseconds, of a reservation or of a
-- denial; the balance after; and for how many microseconds the call waited for the row, NULL if that is not known. One array,
-- because that is quicker than a row.
--
-- The SELECT scans the index backwards, because the newest version is at its end: while some transaction holds an old snapshot,
-- versions pile up, and a forward scan would visit all of them. The UPDATE finds the row by its ctid for the same reason.
-- Under REPEATABLE READ and SERIALIZABLE a row that has changed makes the UPDATE fail (40001). Under READ COMMITTED the UPDATE
-- waits for the other transaction and then does not match; rate_limit_decide goes on from there.
CREATE OR REPLACE FUNCTION public.rate_limit_decide_one(
  bucket_name text,
  bucket_key text,
  kind text,
  rate double precision,
  period bigint,
  capacity double precision,
  max_reserved double precision,
  start bigint,
  resolution integer,
  shards integer,
  count double precision,
  times integer,
  reserves boolean
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
#variable_conflict use_variable
DECLARE
  now bigint;
  waited bigint;
  phase bigint;
  part integer; -- the shard
  beyond double precision; -- what the other rows are thought to hold
  before public.rate_limits;
  after public.rate_limits;
  place tid;
  misses integer; -- how often the row had changed since it was read
  is_written boolean;
  decided record;
BEGIN
  IF coalesce(
    times >= 1 AND shards BETWEEN 1 AND 1000 AND resolution BETWEEN 1 AND 1000 AND rate BETWEEN 1e-100 AND 1e100
      AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e100 AND coalesce(max_reserved BETWEEN 0 AND 1e100, true)
      AND (count = 0 OR count BETWEEN 1e-100 AND 1e100) AND (times = 1 OR count * times <= capacity)
      AND version() NOT LIKE '%-YB-%', -- YugabyteDB has no ctid.
    false)
  THEN
    phase := public.rate_limit_grid(kind, start, period, bucket_name, bucket_key);
    IF shards > 1 THEN
      decided := public.rate_limit_draw(
        bucket_name, bucket_key, kind, rate, period, capacity, start, resolution, shards, count * times, NULL);
      part := coalesce((decided.bucket).shard, -1);
      beyond := decided.beyond;
    END IF;
    LOOP
      SELECT r.name, r.key, r.shard, r.shards, r.value, r.ts, r.idle_at, r.earlier_counts, r.ctid
      INTO before.name, before.key, before.shard, before.shards, before.value, before.ts, before.idle_at, before.earlier_counts, place
      FROM public.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard BETWEEN coalesce(part, 0) AND coalesce(part, 0)
      ORDER BY r.shard DESC
      LIMIT 1;
      now := public.rate_limit_clock();
      IF before.ts <= now AND before.shards = shards AND NOT reserves
        AND public.rate_limit_fits(kind, before.earlier_counts, period, phase, resolution)
      THEN -- Most calls find enough, and need no more than this.
        decided := public.rate_limit_take_from(
          kind, before, now, rate / shards, period, capacity / shards, phase, resolution, count * times);
        IF decided.remaining >= 0 THEN
          UPDATE public.rate_limits AS r
          SET value = (decided.after).value, ts = (decided.after).ts, idle_at = (decided.after).idle_at,
            earlier_counts = (decided.after).earlier_counts
          WHERE r.ctid = place AND r.name = bucket_name AND r.key = bucket_key AND r.shard = before.shard AND r.shards = shards
            AND r.value = before.value AND r.ts = before.ts AND r.earlier_counts IS NOT DISTINCT FROM before.earlier_counts;
          waited := public.rate_limit_clock() - now;
          IF FOUND AND waited <= 2000 THEN
            RETURN ARRAY[times, NULL, decided.remaining + coalesce(beyond, 0), waited];
          ELSIF FOUND THEN
            -- Another transaction had locked the row, and left it as it was. What was decided as of a moment before the wait would
            -- count what has flowed in since twice. The row is locked now.
            decided := public.rate_limit_take_from(
              kind, before, now + waited, rate / shards, period, capacity / shards, phase, resolution, count * times);
            PERFORM public.rate_limit_write(decided.after, decided.after, false);
            RETURN ARRAY[times, NULL, decided.remaining + coalesce(beyond, 0), waited];
          END IF;
          misses := coalesce(misses, 0) + 1; -- The row may be locked now, so the next attempt is likely to be the last.
          CONTINUE WHEN misses < 3;
        END IF;
      END IF;
      EXIT;
    END LOOP;
    IF shards = 1 AND times = 1 AND (before.shards = 1 OR before.ts IS NULL) AND misses IS NULL THEN
      before.name := bucket_name;
      before.key := bucket_key;
      before.shard := 0;
      before.shards := 1;
      decided := public.rate_limit_item(
        before, 'limit', count, reserves, now, kind, rate, period, capacity, max_reserved, phase, resolution);
      IF NOT decided.is_allowed THEN
        RETURN ARRAY[0, decided.wait, decided.remaining, NULL];
      END IF;
      after := decided.bucket_after;
      IF before.ts IS NULL THEN
        INSERT INTO public.rate_limits (name, key, value, ts, idle_at, earlier_counts)
        VALUES (bucket_name, bucket_key, after.value, after.ts, after.idle_at, after.earlier_counts)
        ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
        is_written := FOUND;
      ELSE
        is_written := public.rate_limit_write(before, after, true);
      END IF;
      IF is_written AND public.rate_limit_clock() - now <= 2000 THEN
        RETURN ARRAY[1, decided.wait, decided.remaining, public.rate_limit_clock() - now];
      ELSIF is_written THEN -- As above.
        decided := public.rate_limit_item(
          before, 'limit', count, reserves, public.rate_limit_clock(), kind, rate, period, capacity, max_reserved, phase,
          resolution);
        PERFORM public.rate_limit_write(decided.bucket_after, decided.bucket_after, false);
        RETURN ARRAY[1, decided.wait, decided.remaining, public.rate_limit_clock() - now];
      END IF;
    END IF;
  END IF;
  -- An assignment, because the server logs the text of a SELECT that fails.
  decided := public.rate_limit_decide(
    ARRAY[kind], ARRAY[rate], ARRAY[period], ARRAY[capacity], ARRAY[max_reserved], ARRAY[start], ARRAY[resolution],
    CASE WHEN shards <> 1 THEN ARRAY[shards] END, ARRAY[bucket_name], ARRAY[bucket_key], ARRAY[1], NULL, ARRAY[count], NULL,
    CASE WHEN reserves THEN ARRAY[true] END, NULL, ARRAY[times], NULL, misses IS NOT NULL AND shards > 1);
  RETURN ARRAY[coalesce(decided.call_admitted[1], times), decided.call_waits[1], decided.item_values[1], NULL];
END
$function$;
COMMENT ON FUNCTION public.rate_limit_decide_one IS 'Decides one call on one bucket; called by the client.';
