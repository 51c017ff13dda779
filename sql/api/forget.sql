-- Deletes what is stored about a key: its buckets, its jobs and its answers. For requests to erase personal data.
--   SELECT buckets, jobs, running, answers FROM rate_limit.forget('u1');
--
--   key           the key, and the group of jobs
--   bucket_*      the names of limits and, for each, the key as it is stored; NULL: this key of every limit that has a row. The
--                 client hashes keys, if it has a secret
--   answer_key    the idempotency key; NULL: this key, and all that begin with it and a colon
--   limit_*       the limits that cancelled jobs return their tokens to; NULL: they return none
--   results       how many rows of buckets, jobs and answers were deleted. Jobs that run stay, and are counted in `running`:
--                 call this again once they have ended
--
-- Rows of limits are found by the primary key. A job is found by its group or by any key that it reserved from, which reads the
-- whole table of jobs once. Run it at READ COMMITTED: other levels would make transactions fail that write jobs meanwhile.
CREATE OR REPLACE FUNCTION rate_limit.forget(
  key text, bucket_names text[] DEFAULT NULL, bucket_keys text[] DEFAULT NULL, answer_key text DEFAULT NULL,
  limit_names text[] DEFAULT NULL, limit_kinds text[] DEFAULT NULL, limit_rates double precision[] DEFAULT NULL,
  limit_periods bigint[] DEFAULT NULL, limit_capacities double precision[] DEFAULT NULL, limit_starts bigint[] DEFAULT NULL,
  limit_shards integer[] DEFAULT NULL, OUT buckets bigint, OUT jobs bigint, OUT running bigint, OUT answers bigint
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_indexscan = on SET enable_nestloop = on SET enable_sort = on SET jit = off
AS $function$
#variable_conflict use_variable
DECLARE
  gone record;
  bucket record;
  deleted bigint;
BEGIN
  IF key IS NULL OR key = '' THEN
    RAISE EXCEPTION 'invalid_key: the key to forget is %', CASE WHEN key IS NULL THEN 'NULL' ELSE 'empty' END
      USING ERRCODE = 'invalid_parameter_value',
        HINT = 'The empty key is shared by all; use reset(name, '''') of the same schema.';
  ELSIF '' = ANY (bucket_keys) OR array_position(bucket_keys, NULL) IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_key: a key among bucket_keys is empty or NULL'
      USING ERRCODE = 'invalid_parameter_value',
        HINT = 'The empty key is shared by all; use reset(name, '''') of the same schema.';
  ELSIF cardinality(bucket_names) IS DISTINCT FROM cardinality(bucket_keys) THEN
    RAISE EXCEPTION 'invalid_key: there are % names and % keys of buckets',
      coalesce(cardinality(bucket_names), 0), coalesce(cardinality(bucket_keys), 0)
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one key for each name, or NULL for both.';
  END IF;
  IF bucket_names IS NULL THEN
    bucket_names := ARRAY(SELECT n FROM rate_limit._names() AS n);
    bucket_keys := array_fill(key, ARRAY[cardinality(bucket_names)]);
  END IF;

  -- Buckets first, then groups, then jobs, and last the '/started' buckets, which claims lock after their jobs.
  gone := rate_limit._forget_jobs(
    key, bucket_names, bucket_keys, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts,
    limit_shards);
  jobs := gone.jobs;
  running := gone.running;
  buckets := 0;

  FOR bucket IN
    SELECT DISTINCT u.name COLLATE "C" AS name, u.key COLLATE "C" AS key
    FROM unnest(bucket_names, bucket_keys) AS u (name, key)
    ORDER BY 1, 2
  LOOP
    PERFORM rate_limit._bucket_rows(bucket.name, bucket.key, 1, true, true);
    DELETE FROM rate_limit.rate_limits AS r
    WHERE r.name = bucket.name AND r.key = bucket.key;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    buckets := buckets + deleted;
  END LOOP;

  DELETE FROM rate_limit.answers AS a
  WHERE a.idempotency_key = coalesce(answer_key, key);
  GET DIAGNOSTICS answers = ROW_COUNT;
  IF answer_key IS NULL THEN -- A semicolon follows the colon.
    DELETE FROM rate_limit.answers AS a
    WHERE a.idempotency_key >= key || ':' AND a.idempotency_key < key || ';';
    GET DIAGNOSTICS deleted = ROW_COUNT;
    answers := answers + deleted;
  END IF;
END
$function$;
COMMENT ON FUNCTION rate_limit.forget IS 'Deletes the buckets, jobs and answers of a key.';
