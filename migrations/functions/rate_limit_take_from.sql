-- rate_limit_take_from(text, rate_limits, bigint, double precision, bigint, double precision, bigint, integer, double precision)
-- SHA-256: 0328eff2a1d047edac790ffb06b4be00c345d7ffbf8572b3367a076581e32d68

-- Takes `amount` tokens at `now` from a row of this kind and grid, even if it has fewer. Returns the new row and the balance.
-- It is not one expression, so that only the expressions of one kind are set up.
CREATE OR REPLACE FUNCTION public.rate_limit_take_from(
  kind text, bucket public.rate_limits, now bigint, rate double precision, period bigint, capacity double precision,
  phase bigint, resolution integer, amount double precision, OUT after public.rate_limits, OUT remaining double precision
) LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  after := bucket;
  IF kind = 'token_bucket' THEN
    after.value := public.rate_limit_token_bucket_value(bucket.value, bucket.ts, now, rate, period, capacity) - amount;
    after.ts := now;
    after.idle_at := public.rate_limit_token_bucket_idle_at(after.value, now, rate, period, capacity);
    remaining := after.value;
  ELSIF kind = 'fixed_window' THEN
    after.value := public.rate_limit_fixed_window_value(bucket.value, bucket.ts, now, rate, period, capacity, phase) - amount;
    -- The window may have started before `ts` if the period was made longer: see rate_limit_ts_after.
    after.ts := greatest(bucket.ts, public.rate_limit_window_start(now, phase, period));
    after.idle_at := public.rate_limit_fixed_window_idle_at(after.value, now, rate, period, capacity, phase);
    remaining := after.value;
  ELSIF kind = 'sliding_window' THEN
    after.value := public.rate_limit_sliding_window_value(
      bucket.value, bucket.ts, bucket.earlier_counts, now, period, phase, resolution) + amount;
    after.earlier_counts := public.rate_limit_sliding_window_earlier(
      bucket.value, bucket.ts, bucket.earlier_counts, now, rate, period, phase, resolution);
    after.ts := now;
    after.idle_at := public.rate_limit_sliding_window_idle_at(
      after.value || after.earlier_counts[4:], now, period, phase, resolution);
    remaining := public.rate_limit_sliding_window_left_at(
      bucket.value, bucket.ts, bucket.earlier_counts, now, rate, period, phase, resolution) - amount;
  ELSE
    after.value := public.rate_limit_calendar_window_value(kind, bucket.value, bucket.ts, now, rate, capacity) - amount;
    after.ts := public.rate_limit_ts_after(kind, bucket.ts, now, period, NULL);
    after.idle_at := public.rate_limit_calendar_window_idle_at(kind, after.value, now, rate, period, capacity);
    remaining := after.value;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_from IS 'Takes tokens from a row in memory.';
