-- Deletes the rows of one key of a limit, so that its bucket is full again. Returns the number of deleted rows.
CREATE OR REPLACE FUNCTION rate_limit.reset(name text, key text) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off
AS $function$
DECLARE
  gone bigint;
  shards integer;
BEGIN
  IF name IS NULL OR key IS NULL THEN
    RAISE EXCEPTION 'invalid_key: reset(name, key) takes no NULL'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use reset(name) to forget every key of a limit.';
  END IF;
  -- One by one, by the whole primary key and in the order in which decisions lock rows. The row of shard 0 stores the number of
  -- rows. Only a transaction that has locked it can change that number.
  DELETE FROM rate_limit.rate_limits AS r
  WHERE r.name = reset.name AND r.key = reset.key AND r.shard = 0
  RETURNING r.shards INTO shards;
  gone := FOUND::integer;
  FOR nth_shard IN 1 .. coalesce(shards, 1) - 1 LOOP
    DELETE FROM rate_limit.rate_limits AS r
    WHERE r.name = reset.name AND r.key = reset.key AND r.shard = nth_shard;
    gone := gone + FOUND::integer;
  END LOOP;
  IF gone > 0 THEN -- Slots of a concurrency limit may be free now.
    PERFORM rate_limit._slots_freed(ARRAY['concurrency'], ARRAY[name], ARRAY[key], NULL, NULL, ARRAY[1]);
  END IF;
  RETURN gone;
END
$function$;
COMMENT ON FUNCTION rate_limit.reset(text, text) IS
  'Deletes the rows of one key of a limit, so that its bucket is full again.';
