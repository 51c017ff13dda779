-- rate_limit_peek_wait(text, rate_limits, bigint, bigint, bigint)
-- SHA-256: df975c316c4081df0763131d1c08647a6deabb953f2320a0fd0ad3181b8a0f24

-- Returns the microseconds from `now` until the window ends or, for a kind without windows that end, until a row, brought up
-- to `now`, is full.
CREATE OR REPLACE FUNCTION public.rate_limit_peek_wait(
  kind text, bucket public.rate_limits, now bigint, period bigint, phase bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'fixed_window' THEN public.rate_limit_window_start(now, phase, period) + period - now
    ELSE greatest(bucket.idle_at - now, 0)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_peek_wait IS 'Returns the time until the window ends or the bucket is full.';
