-- rate_limit_bucket_rows(text, text, integer, boolean, boolean)
-- SHA-256: ae68e2a845e715974da586096a3ffb524a9dea52ab148264c0fca99077fcc187

-- Returns the rows of a bucket, that of shard 0 first, which says how many there are; or of so many `shards`, if it has
-- fewer. `locks`: each
-- is locked, in this order. Only a transaction that has locked the row of shard 0 adds or removes others. A row that may not be
-- waited for, because the caller has locked rows that come after it, is an error if another transaction has locked it.
CREATE OR REPLACE FUNCTION public.rate_limit_bucket_rows(
  bucket_name text, bucket_key text, shards integer, locks boolean, may_wait boolean
) RETURNS public.rate_limits[] LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  bucket public.rate_limits;
  found_rows public.rate_limits[] := '{}';
  last_shard integer := shards - 1;
  nth_shard integer := 0;
BEGIN
  WHILE nth_shard <= last_shard LOOP
    IF NOT locks THEN
      SELECT r.*
      INTO bucket
      FROM public.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard;
    ELSIF may_wait THEN
      SELECT r.*
      INTO bucket
      FROM public.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard
      FOR NO KEY UPDATE;
    ELSE
      SELECT r.*
      INTO bucket
      FROM public.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard
      FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (
        SELECT
        FROM public.rate_limits AS r
        WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard)
      THEN
        RAISE EXCEPTION 'could not serialize access to a bucket'
          USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
      END IF;
    END IF;
    IF bucket.ts IS NOT NULL THEN
      found_rows := found_rows || bucket;
      last_shard := greatest(last_shard, bucket.shards - 1);
    END IF;
    nth_shard := nth_shard + 1;
  END LOOP;
  RETURN found_rows;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_bucket_rows IS 'Returns the rows of a bucket, and locks them if asked to.';
