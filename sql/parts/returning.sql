-- The balances after that.
RETURNING
  asked.nth,
  CASE
    WHEN asked.shards > 1 THEN greatest(pair_balances[asked.nth] * asked.shards / 2 - amount, bucket.value)
    WHEN abs(bucket.value) <= asked.tolerance THEN 0
    ELSE bucket.value
  END AS left_over,
  CASE
    WHEN asked.reserves AND bucket.value < - asked.tolerance
    THEN (
      SELECT
        --@include token_bucket.reserved_wait
      FROM (SELECT bucket.value AS left_over, bucket.ts AS left_at) AS b
    )
  END AS wait
