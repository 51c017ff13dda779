-- rate_limit_enforce(text, text, text, double precision, interval, double precision, double precision, boolean, double precision, interval, integer, integer, timestamp with time zone)
-- SHA-256: bea4083a37030c418cd9c70f7e79ecf688ecfaa4d314ea3de82ab1575cac0022

-- Takes `count` tokens, or raises RL429 to reject the statement, or the row in a trigger. DETAIL contains the retry time, as
-- in "Retry after 5.999500 seconds.". Returns the wait of a reservation, or NULL if there is none.
CREATE OR REPLACE FUNCTION public.rate_limit_enforce(
  name text, key text, kind text, rate double precision, period interval, capacity double precision DEFAULT NULL,
  count double precision DEFAULT 1, reserve boolean DEFAULT false, max_reserved double precision DEFAULT NULL,
  start interval DEFAULT NULL, resolution integer DEFAULT NULL, shards integer DEFAULT 1,
  at timestamp with time zone DEFAULT NULL
) RETURNS interval LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
DECLARE
  decision record;
BEGIN
  SELECT s.ok, s.retry_after
  INTO decision
  FROM public.rate_limit_single('limit', name, key, kind, rate, period, capacity, count, reserve, max_reserved, start,
    resolution, shards, at) AS s;
  IF NOT decision.ok THEN
    RAISE EXCEPTION 'rate limit "%" exceeded', name
      USING
        ERRCODE = 'RL429',
        DETAIL = format('Retry after %s seconds.', extract(epoch FROM decision.retry_after)::numeric(30, 6)),
        HINT = 'Wait, then try again.';
  END IF;
  RETURN decision.retry_after;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_enforce IS
  'Takes tokens from one bucket, or raises RL429 with the retry time in DETAIL.';
