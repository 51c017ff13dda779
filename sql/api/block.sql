-- Blocks a key of a gate for this time, and returns the rest of its block. A block that lasts longer stays: a shorter one
-- never ends it earlier.
--   SELECT rate_limit.block('banned', '203.0.113.7', '1 hour');
--
-- A block is stored as a token bucket of capacity 0 to which a token arrives each microsecond: it owes one token for each
-- microsecond of the block, and is idle once that has ended. `detail` is {-2}, so that the row is mistaken for no other kind.
CREATE OR REPLACE FUNCTION rate_limit.block(name text, key text, duration interval) RETURNS interval
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  length bigint; -- in microseconds
  clock bigint;
  now bigint;
  bucket rate_limit.rate_limits;
BEGIN
  PERFORM rate_limit._require_gate(name, key);
  IF NOT coalesce(duration > '0' AND duration <= '36525 days' AND extract(year FROM duration) = 0
    AND extract(month FROM duration) = 0, false)
  THEN
    RAISE EXCEPTION 'invalid_block: the block % is not between 1 microsecond and 36525 days', coalesce(duration::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give an interval without months or years, like ''1 hour''.';
  END IF;
  length := (extract(epoch FROM duration) * 1000000)::bigint;
  LOOP
    SELECT r.*
    INTO bucket
    FROM rate_limit.rate_limits AS r
    WHERE r.name = name AND r.key = key AND r.shard = 0
    FOR NO KEY UPDATE;
    IF bucket.ts IS NOT NULL AND (bucket.detail[1] = -2) IS NOT TRUE THEN
      RAISE EXCEPTION 'not_a_gate: the limit "%" has tokens or slots stored for this key, so it is no gate', name
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Block a key of a gate: a limit of that kind, with a name of its own. '
          'If the limit had another kind before, reset the key.';
    END IF;
    -- Read after the row is locked: a block lasts from the end of the wait for the row.
    clock := rate_limit._clock();
    now := greatest(clock, bucket.ts);
    length := greatest(length, bucket.ts - bucket.value - now);
    IF bucket.ts IS NOT NULL THEN
      UPDATE rate_limit.rate_limits AS r
      SET shards = 1, value = - length, ts = now, idle_at = now + length
      WHERE r.name = name AND r.key = key AND r.shard = 0;
      RETURN (now - clock + length) * interval '1 microsecond';
    END IF;
    INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at, detail)
    VALUES (name, key, - length, now, now + length, ARRAY[-2])
    ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
    IF FOUND AND rate_limit._clock() - now <= rate_limit._late_after(1) THEN
      RETURN length * interval '1 microsecond';
    END IF;
  END LOOP;
END
$function$;
COMMENT ON FUNCTION rate_limit.block IS 'Blocks a key of a gate for a time.';
