-- Returns the wait of an allowed call, or raises RL429 for a denied one.
CREATE OR REPLACE FUNCTION rate_limit._enforced(name text, ok boolean, retry_after interval) RETURNS interval
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
BEGIN
  IF NOT ok THEN
    RAISE EXCEPTION 'rate limit "%" exceeded', name
      USING
        ERRCODE = 'RL429',
        DETAIL = format('Retry after %s seconds.', extract(epoch FROM retry_after)::numeric(30, 6)),
        HINT = 'Wait, then try again.';
  END IF;
  RETURN retry_after;
END
$function$;
