-- rate_limit_level(rate_limits[], rate_limits)
-- SHA-256: 74a297111aeceac9b2f5f45cb8ace926c35a6b2d3d217014a6a909dfb2bfb25f

-- Writes a bucket as `bucket.shards` rows with equal balances; without `ts`, deletes the bucket. The caller has locked its
-- rows, which are `shares`.
CREATE OR REPLACE FUNCTION public.rate_limit_level(shares public.rate_limits[], bucket public.rate_limits) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  parts CONSTANT integer := CASE WHEN bucket.ts IS NULL THEN 0 ELSE bucket.shards END;
  share public.rate_limits;
BEGIN
  bucket.value := bucket.value / nullif(parts, 0);
  bucket.earlier_counts := bucket.earlier_counts[1:2] || ARRAY(
    SELECT u.count / nullif(parts, 0)
    FROM unnest(bucket.earlier_counts[3:]) WITH ORDINALITY AS u (count, nth)
    ORDER BY u.nth
  );
  IF bucket.earlier_counts = '{}' THEN
    bucket.earlier_counts := NULL;
  END IF;
  FOREACH share IN ARRAY shares LOOP
    IF share.shard < parts THEN
      UPDATE public.rate_limits AS r
      SET shards = bucket.shards, value = bucket.value, ts = bucket.ts, idle_at = bucket.idle_at,
        earlier_counts = bucket.earlier_counts
      WHERE r.name = share.name AND r.key = share.key AND r.shard = share.shard;
    ELSE
      DELETE FROM public.rate_limits AS r
      WHERE r.name = share.name AND r.key = share.key AND r.shard = share.shard;
    END IF;
  END LOOP;
  FOR nth_shard IN 0 .. parts - 1 LOOP
    CONTINUE WHEN EXISTS (SELECT FROM unnest(shares) AS s WHERE s.shard = nth_shard);
    INSERT INTO public.rate_limits (name, key, shard, shards, value, ts, idle_at, earlier_counts)
    VALUES (
      bucket.name, bucket.key, nth_shard, bucket.shards, bucket.value, bucket.ts, bucket.idle_at, bucket.earlier_counts)
    ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
    IF NOT FOUND THEN -- The row was left over from a bucket with more rows.
      RAISE EXCEPTION 'could not serialize access to a bucket'
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
  END LOOP;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_level IS 'Writes a bucket as rows with equal balances.';
