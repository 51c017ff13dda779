-- Decides one call on one bucket, made `times` times. The arguments mean the same as for _decide, which decides
-- whatever one row cannot decide.
--
-- Returns {admitted, wait, value, waited}: how many of the times were allowed; the wait in microseconds, of a reservation or
-- of a denial; the balance after the call; and how many microseconds the call waited for the row, NULL if that is not known.
-- It returns one array because that is faster than a row. With `is_tried`, such an UPDATE has just found too few tokens.
--
-- In most calls the bucket has enough tokens, and one UPDATE takes them: _update_token_bucket, and so on. (A call for no tokens
-- only reads the row.) Otherwise the row is read and decided on, and written
-- if it has not changed since, so that a denial writes nothing and locks nothing. Under REPEATABLE READ and SERIALIZABLE,
-- either write of a changed row fails (40001). Under READ COMMITTED, the first UPDATE does not match a row for which it has
-- waited; then the row is locked, and decided on as it is. If the second write does not match, _decide takes over.
--
-- Rows are looked up by a backward scan of the index, because the newest version is at its end: while a transaction holds an
-- old snapshot, versions pile up, and a forward scan would visit all of them. For the same reason the UPDATE selects the row
-- by its ctid. If rows are spread over nodes, there is no ctid, and _take_one takes the tokens.
CREATE OR REPLACE FUNCTION rate_limit._decide_one(
  bucket_name text, bucket_key text, kind text, rate double precision, period bigint, capacity double precision,
  max_reserved double precision, start bigint, resolution integer, shards integer, count double precision, times integer,
  reserves boolean, is_tried boolean DEFAULT false
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on
SET enable_tidscan = on SET enable_nestloop = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  amount CONSTANT double precision := count * times;
  share_rate CONSTANT double precision := rate / nullif(shards, 0); -- of one row
  share_capacity CONSTANT double precision := capacity / nullif(shards, 0);
  has_update CONSTANT boolean := NOT reserves AND amount > 0 -- one of those below decides the call, if it can be allowed
    AND (kind IN ('token_bucket', 'fixed_window') OR (kind = 'sliding_window' AND resolution = 1));
  now bigint;
  waited bigint;
  phase bigint;
  part integer := 0; -- the shard
  beyond double precision := 0; -- the estimated tokens in the other rows
  balance double precision;
  before rate_limit.rate_limits;
  after rate_limit.rate_limits;
  is_new boolean; -- whether the bucket has no row; NULL: it has several, or none was read
  is_written boolean;
  has_waited boolean; -- an UPDATE was so slow that it may have waited for a row, and locked it
  may_hold boolean := false; -- `has_waited` was true in an attempt
  decided record;
BEGIN
  IF coalesce(
    times >= 1 AND kind <> 'concurrency' AND shards BETWEEN 1 AND 1000 AND resolution BETWEEN 1 AND 1000
      AND rate_limit._in_range(rate, period, capacity) AND coalesce(max_reserved BETWEEN 0 AND 1e13, true)
      AND (count = 0 OR rate_limit._is_exact(count, capacity)) AND (times = 1 OR amount <= capacity),
    false)
  THEN
    IF kind <> 'token_bucket' THEN
      phase := rate_limit._grid(kind, start, period, bucket_name, bucket_key);
    END IF;
    IF rate_limit._is_distributed() THEN
      part := NULL;
      IF kind = 'token_bucket' AND shards = 1 AND has_update THEN
        balance := rate_limit._take_one(bucket_name, bucket_key, rate, period, capacity, amount);
      END IF;
    ELSIF shards > 1 THEN
      decided := rate_limit._draw(
        bucket_name, bucket_key, kind, rate, period, capacity, start, resolution, shards, amount, NULL);
      part := (decided.bucket).shard;
      beyond := decided.beyond;
    END IF;
    -- If an attempt waited for the row, the row is locked now, and the next attempt likely succeeds. A session's first one is
    -- slow.
    FOR attempt IN 1 .. CASE WHEN part IS NULL OR (shards > 1 AND NOT has_update) THEN 0 ELSE 20 END LOOP
      now := rate_limit._clock();
      IF NOT has_update OR (is_tried AND attempt = 1) THEN
        NULL;
      ELSIF kind = 'token_bucket' THEN
        balance := rate_limit._update_token_bucket(
          bucket_name, bucket_key, part, shards, now, share_rate, period, share_capacity, amount);
      ELSIF kind = 'fixed_window' THEN
        balance := rate_limit._update_fixed_window(
          bucket_name, bucket_key, part, shards, now, share_rate, period, share_capacity, phase, amount);
      ELSE
        balance := rate_limit._update_sliding_window(
          bucket_name, bucket_key, part, shards, now, share_rate, period, phase, amount);
      END IF;
      has_waited := rate_limit._clock() > now + 200;
      may_hold := may_hold OR has_waited;
      EXIT WHEN balance IS NOT NULL
        OR CASE WHEN shards = 1 THEN times > 1 AND count > 0 ELSE NOT has_waited AND attempt > 2 END;
      CONTINUE WHEN shards > 1 OR (has_waited AND attempt = 1);
      SELECT r.*
      INTO before
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard BETWEEN 0 AND 0
      ORDER BY r.shard DESC
      LIMIT 1;
      is_new := CASE WHEN before.ts IS NULL OR before.shards = 1 THEN before.ts IS NULL END;
      EXIT WHEN is_new IS NULL;
      before.name := bucket_name;
      before.key := bucket_key;
      before.shard := 0;
      before.shards := 1;
      decided := rate_limit._item(
        before, 'limit', count, reserves, now, kind, rate, period, capacity, max_reserved, phase, resolution);
      EXIT WHEN rate_limit._clock() <= now + 1000 AND (is_new OR NOT (has_update AND decided.is_allowed));
    END LOOP;
    IF balance IS NOT NULL THEN
      waited := rate_limit._clock() - now;
      IF waited > rate_limit._late_after(1) THEN
        -- Another transaction may have locked the row without changing it. A decision as of a time before that wait would count
        -- the refill since then twice, so it is made again.
        balance := rate_limit._retake(
          bucket_name, bucket_key, part, kind, share_rate, period, share_capacity, phase, resolution, amount, amount,
          now + waited);
      END IF;
      RETURN ARRAY[times, NULL, balance + beyond, waited];
    END IF;
    IF is_new IS NOT NULL THEN
      IF NOT decided.is_allowed THEN
        RETURN ARRAY[0, decided.wait, decided.remaining, NULL];
      ELSIF count = 0 THEN
        RETURN ARRAY[times, decided.wait, decided.remaining, NULL];
      END IF;
      after := decided.bucket_after;
      IF is_new THEN
        INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at, detail)
        VALUES (bucket_name, bucket_key, after.value, after.ts, after.idle_at, after.detail)
        ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
        is_written := FOUND;
      ELSE
        is_written := rate_limit._write(before, after, true);
      END IF;
      waited := rate_limit._clock() - now;
      IF is_written AND waited > rate_limit._late_after(1) THEN -- As above.
        decided := rate_limit._item(
          before, 'limit', count, reserves, now + waited, kind, rate, period, capacity, max_reserved, phase, resolution);
        PERFORM rate_limit._write(decided.bucket_after, decided.bucket_after, false);
      END IF;
      IF is_written THEN
        RETURN ARRAY[1, decided.wait, decided.remaining, waited];
      END IF;
    END IF;
  END IF;
  -- This is an assignment because the server logs the text of a failing SELECT. A row of a sharded bucket may be locked by now.
  decided := rate_limit._decide(
    ARRAY[kind], ARRAY[rate], ARRAY[period], ARRAY[capacity], ARRAY[max_reserved], ARRAY[start], ARRAY[resolution],
    CASE WHEN shards <> 1 THEN ARRAY[shards] END, ARRAY[bucket_name], ARRAY[bucket_key], ARRAY[1], NULL, ARRAY[count], NULL,
    CASE WHEN reserves THEN ARRAY[true] END, NULL, ARRAY[times], NULL,
    holds_rows => may_hold AND shards > 1);
  RETURN ARRAY[coalesce(decided.call_admitted[1], times), decided.call_waits[1], decided.item_values[1], NULL];
END
$function$;
