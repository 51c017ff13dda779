RETURNING
  nth,
  public.rate_limit_left_over(bucket.value, tolerance, a.shards, amount, pair_balances[nth]) AS left_over,
  public.rate_limit_reserved_wait(bucket.value, bucket.ts - public.rate_limit_clock(), amount, rate, period, capacity) AS wait,
  bucket.ts
