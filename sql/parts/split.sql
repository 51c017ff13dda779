-- The rows of bucket b, which were gathered into one: as they are to be.
-- Which ones there are now:
shards_there := CASE
  WHEN is_removed[b] THEN '{}'
  WHEN is_split[b] THEN ARRAY(SELECT generate_series(0, coalesce(bucket_shards[b], 1) - 1))
  ELSE ARRAY(
    SELECT u.shard
    FROM unnest(shares[first_shares[b] : first_shares[b] + share_counts[b] - 1]) AS u
  ) || CASE WHEN is_anchored[b] THEN ARRAY[0] ELSE '{}' END
END;
-- and which of these go:
shards_gone := CASE WHEN NOT row_present[b] THEN shards_there WHEN is_anchored[b] THEN ARRAY[0] ELSE '{}' END;
is_removed[b] := NOT row_present[b];
IF row_present[b] AND row_changed[b] THEN
  bucket := rows[b];
  kept := gathered_rows[b];
  total := CASE WHEN bucket.earlier_counts IS NULL THEN kept.value - bucket.value ELSE bucket.value - kept.value END;
  parts := bucket.shards;
  shards_gone := ARRAY(SELECT u.shard FROM unnest(shards_there) AS u (shard) WHERE u.shard >= parts);
  IF may_drain[b] AND is_split[b] IS NOT TRUE AND is_removed[b] IS NOT TRUE
    AND total BETWEEN 0 AND gathered_totals[b]
    AND bucket.ts = kept.ts AND bucket.earlier_counts IS NOT DISTINCT FROM kept.earlier_counts
  THEN
    --@include drain
  ELSE
    IF again AND is_split[b] IS NOT TRUE AND is_removed[b] IS NOT TRUE THEN
      --@include out_of_order
    END IF;
    is_split[b] := true;
    --@include level
  END IF;
END IF;
FOREACH nth_shard IN ARRAY shards_gone LOOP
  bucket.name := bucket_names[b];
  bucket.key := bucket_keys[b];
  bucket.shard := nth_shard;
  to_delete := to_delete || bucket;
END LOOP;

--@ part drain: tokens were taken, and nothing else: from the fullest rows, so that few are touched and few tokens broken
limit_in_hand := gathered_limits[b];
--@include config
rate := rate / parts;
capacity := capacity / parts;
now := gathered_ats[b];
in_hand := b;
drained := NULL;
FOR nth_share IN
  SELECT first_shares[b] + u.nth - 1
  FROM unnest(share_balances[first_shares[b] : first_shares[b] + parts - 1]) WITH ORDINALITY AS u (balance, nth)
  ORDER BY was_drained[first_shares[b] + u.nth - 1] DESC NULLS LAST, u.balance DESC
LOOP
  EXIT WHEN total <= 0;
  IF again AND was_drained[nth_share] IS NOT TRUE THEN
    --@include out_of_order
  END IF;
  was_drained[nth_share] := true;
  count := least(total, greatest(share_balances[nth_share], 0));
  total := total - count;
  bucket := shares[nth_share];
  present := true;
  --@kinds advance
  --@kinds take
  --@kinds idle
  drained := drained || bucket;
END LOOP;
to_update := to_update || ARRAY(SELECT u FROM unnest(drained) AS u ORDER BY u.shard);

--@ part level: every row gets the same
bucket.value := bucket.value / parts;
IF bucket.earlier_counts IS NOT NULL THEN
  bucket.earlier_counts := bucket.earlier_counts[1:2] || ARRAY(
    SELECT u.count / parts
    FROM unnest(bucket.earlier_counts[3:]) WITH ORDINALITY AS u (count, nth)
    ORDER BY u.nth
  );
END IF;
FOR nth_shard IN 0 .. parts - 1 LOOP
  bucket.shard := nth_shard;
  IF nth_shard = ANY (shards_there) THEN
    to_update := to_update || bucket;
  ELSIF nth_shard = 0 THEN
    to_insert := to_insert || bucket;
  ELSE
    to_insert_last := to_insert_last || bucket;
  END IF;
END LOOP;
