-- Deletes the rows of all keys of a limit. Returns the number of deleted rows. It scans for them: on YugabyteDB at READ
-- COMMITTED, because a SERIALIZABLE scan would lock the table. If the rows are spread over nodes, it resets key by key.
CREATE OR REPLACE FUNCTION rate_limit.reset(name text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
DECLARE
  gone bigint := 0;
  deleted bigint;
  doomed record;
BEGIN
  IF name IS NULL THEN
    RAISE EXCEPTION 'invalid_name: reset(name) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Name the limit whose keys are to be forgotten.';
  END IF;
  IF rate_limit._is_distributed() THEN
    FOR doomed IN
      SELECT DISTINCT r.key
      FROM rate_limit.rate_limits AS r
      WHERE r.name = reset.name
      ORDER BY r.key
    LOOP
      gone := gone + rate_limit.reset(name, doomed.key);
    END LOOP;
    RETURN gone;
  END IF;
  -- Once more, because another transaction may have added shards while this waited for the row of shard 0.
  FOR pass IN 1 .. 2 LOOP
    WITH doomed AS (
      SELECT r.name, r.key, r.shard
      FROM rate_limit.rate_limits AS r
      WHERE r.name = reset.name AND (pass = 1 OR (r.shard > 0 AND NOT EXISTS (
        SELECT
        FROM rate_limit.rate_limits AS z
        WHERE z.name = r.name AND z.key = r.key AND z.shard = 0
      )))
      ORDER BY r.name, r.key, r.shard
      FOR UPDATE
    )
    DELETE FROM rate_limit.rate_limits AS r
    USING doomed AS d
    WHERE r.name = d.name AND r.key = d.key AND r.shard = d.shard;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    gone := gone + deleted;
  END LOOP;
  IF gone > 0 THEN -- Slots of a concurrency limit may be free now.
    PERFORM rate_limit._slots_freed(ARRAY['concurrency'], ARRAY[name], NULL, NULL, NULL, NULL);
  END IF;
  RETURN gone;
END
$function$;
COMMENT ON FUNCTION rate_limit.reset(text) IS
  'Deletes the rows of all keys of a limit, so that their buckets are full again.';
