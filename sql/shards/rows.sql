-- Returns the rows of a bucket as an array in the order of their shards, to decide on all of them. The rows store how many
-- exist; at least `shards` rows are looked up. With `locks`, each row is locked, in this order. Only a transaction that has
-- locked the row of shard 0 adds or removes other rows. Without `may_wait`, because the caller has locked rows that come
-- later in the order, a row that another transaction has locked is an error.
CREATE OR REPLACE FUNCTION rate_limit._bucket_rows(
  bucket_name text, bucket_key text, shards integer, locks boolean, may_wait boolean
) RETURNS rate_limit.rate_limits[] LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  bucket rate_limit.rate_limits;
  found_rows rate_limit.rate_limits[] := '{}';
  last_shard integer := shards - 1;
  nth_shard integer := 0;
BEGIN
  WHILE nth_shard <= last_shard LOOP
    IF NOT locks THEN
      SELECT r.*
      INTO bucket
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard;
    ELSIF may_wait THEN
      SELECT r.*
      INTO bucket
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard
      FOR NO KEY UPDATE;
    ELSE
      SELECT r.*
      INTO bucket
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard
      FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (
        SELECT
        FROM rate_limit.rate_limits AS r
        WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard)
      THEN
        RAISE EXCEPTION 'could not serialize access to a bucket'
          USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
      END IF;
    END IF;
    IF bucket.ts IS NOT NULL THEN
      -- Another transaction deleted the bucket and created it again after the lookup of shard 0. It may hold the new row of
      -- shard 0 and wait for this row.
      IF locks AND nth_shard > 0 AND found_rows = '{}' THEN
        IF EXISTS (
          SELECT
          FROM rate_limit.rate_limits AS r
          WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = 0
        )
        THEN
          RAISE EXCEPTION 'could not serialize access to a bucket'
            USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
        END IF;
      END IF;
      found_rows := found_rows || bucket;
      last_shard := greatest(last_shard, bucket.shards - 1);
    END IF;
    nth_shard := nth_shard + 1;
  END LOOP;
  RETURN found_rows;
END
$function$;
