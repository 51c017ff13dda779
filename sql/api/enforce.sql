-- Takes `count` tokens under a stored limit, or raises RL429, as enforce_with does under the rule of the call.
--   SELECT rate_limit.enforce('posts', NEW.author);
CREATE OR REPLACE FUNCTION rate_limit.enforce(
  name text, key text, count double precision DEFAULT 1, reserve boolean DEFAULT false
) RETURNS interval LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT c.retry_after
  FROM rate_limit._call('enforce', key, rate_limit._definition(name, key), count, reserve, NULL) AS c
$function$;
COMMENT ON FUNCTION rate_limit.enforce IS
  'Takes tokens from one bucket of a stored limit, or raises RL429 with the retry time in DETAIL.';
