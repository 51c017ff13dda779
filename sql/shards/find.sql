-- Returns the row of a bucket to decide on; without `ts` if the bucket has no row. For a sharded bucket it is the better of
-- two drawn rows if that row covers `amount`, or else all rows gathered into one. With `locks` it locks the row, or all of
-- the rows.
--
--   shards    the number of shards of the limit
--   amount    the tokens to take; NULL: read all rows
--   at        the time; NULL: the database's clock
--   nth_shard the row that was drawn before; NULL: none was
--   parts     the number of rows of the bucket, if the returned row is one of several
--   beyond    the estimated tokens in the other rows
--   shares    the rows that were gathered; NULL: none were
CREATE OR REPLACE FUNCTION rate_limit._find(
  bucket_name text, bucket_key text, kind text, rate double precision, period bigint, capacity double precision, start bigint,
  resolution integer, shards integer, amount double precision, at bigint, nth_shard integer, locks boolean, may_wait boolean,
  OUT bucket rate_limit.rate_limits, OUT parts integer, OUT beyond double precision, OUT shares rate_limit.rate_limits[]
) LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  drawn record;
BEGIN
  IF shards > 1 AND amount IS NOT NULL AND nth_shard IS NULL AND NOT locks THEN
    drawn := rate_limit._draw(
      bucket_name, bucket_key, kind, rate, period, capacity, start, resolution, shards, amount, at);
    bucket := drawn.bucket;
    IF bucket.ts IS NOT NULL THEN
      parts := shards;
      beyond := drawn.beyond;
      RETURN;
    END IF;
  END IF;
  IF shards = 1 OR nth_shard IS NOT NULL THEN
    parts := CASE WHEN shards > 1 THEN shards END;
    nth_shard := coalesce(nth_shard, 0);
    IF locks THEN
      SELECT r.*
      INTO bucket
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard
      FOR NO KEY UPDATE;
    ELSE
      SELECT r.*
      INTO bucket
      FROM rate_limit.rate_limits AS r
      WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard;
    END IF;
  END IF;
  IF bucket.shards = shards THEN
    RETURN;
  END IF;
  parts := NULL;
  IF shards > 1 OR bucket.shards > 1 THEN
    -- A row that was locked alone may come after other rows of the bucket in the lock order.
    shares := rate_limit._bucket_rows(
      bucket_name, bucket_key, shards, locks, may_wait AND coalesce(nth_shard, 0) = 0);
  END IF;
  IF shares <> '{}' THEN
    bucket := rate_limit._gather(
      shares, kind, rate, period, capacity, rate_limit._grid(kind, start, period, bucket_name, bucket_key), resolution);
  ELSE
    bucket.name := bucket_name;
    bucket.key := bucket_key;
    bucket.shard := 0;
  END IF;
  bucket.shards := shards;
END
$function$;
