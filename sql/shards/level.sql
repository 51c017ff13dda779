-- Writes a bucket as `bucket.shards` rows with equal balances; without `ts`, deletes the bucket. The caller has locked its
-- rows, which are `shares`.
CREATE OR REPLACE FUNCTION rate_limit._level(shares rate_limit.rate_limits[], bucket rate_limit.rate_limits) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  parts CONSTANT integer := CASE WHEN bucket.ts IS NULL THEN 0 ELSE bucket.shards END;
  share rate_limit.rate_limits;
BEGIN
  bucket.value := bucket.value / nullif(parts, 0);
  bucket.detail := bucket.detail[1:2] || ARRAY(
    SELECT u.count / nullif(parts, 0)
    FROM unnest(bucket.detail[3:]) WITH ORDINALITY AS u (count, nth)
    ORDER BY u.nth
  );
  IF bucket.detail = '{}' THEN
    bucket.detail := NULL;
  END IF;
  FOREACH share IN ARRAY shares LOOP
    IF share.shard < parts THEN
      UPDATE rate_limit.rate_limits AS r
      SET shards = bucket.shards, value = bucket.value, ts = bucket.ts, idle_at = bucket.idle_at,
        detail = bucket.detail
      WHERE r.name = share.name AND r.key = share.key AND r.shard = share.shard;
    ELSE
      DELETE FROM rate_limit.rate_limits AS r
      WHERE r.name = share.name AND r.key = share.key AND r.shard = share.shard;
    END IF;
  END LOOP;
  FOR nth_shard IN 0 .. parts - 1 LOOP
    CONTINUE WHEN EXISTS (SELECT FROM unnest(shares) AS s WHERE s.shard = nth_shard);
    INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at, detail)
    VALUES (
      bucket.name, bucket.key, nth_shard, bucket.shards, bucket.value, bucket.ts, bucket.idle_at, bucket.detail)
    ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
    IF NOT FOUND THEN -- The row was left over from a bucket with more rows.
      RAISE EXCEPTION 'could not serialize access to a bucket'
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
  END LOOP;
END
$function$;
