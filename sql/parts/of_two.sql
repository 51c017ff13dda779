-- Of the two rows drawn, `first` and `step` further, one that is free if it has enough for `amount`, or else the fuller one;
-- and what both hold.
SELECT f.shard, f.balance, sum(f.balance) OVER () AS of_both
FROM (
  SELECT
    bucket.shard,
    bucket.in_use,
    least(
      --@include token_bucket.flow
      , capacity) AS balance
  FROM unnest(ARRAY[first, (first + step) % a.shards]) AS d (shard)
  CROSS JOIN LATERAL (
    SELECT (s.bucket).*, s.in_use
    FROM public.rate_limit_rows(a.name, a.key) AS s
    WHERE s.shard = d.shard
    LIMIT 1
  ) AS bucket
  WHERE bucket.shards = a.shards AND bucket.earlier_counts IS NULL
) AS f
ORDER BY f.balance >= amount DESC, f.in_use, f.balance DESC
LIMIT 1
