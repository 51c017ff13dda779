-- Gives tokens back to several buckets, up to their capacities. The elements of `calls` and the objects of `limits` are those of
-- limit_all_with, without a headroom, and without gates and concurrency limits.
--   SELECT rate_limit.credit_all_with('[
--     {"name": "llm_tokens", "key": "u1", "kind": "token_bucket", "rate": 9000, "period": "1 minute", "count": 250}]');
CREATE OR REPLACE FUNCTION rate_limit.credit_all_with(calls jsonb, OUT limits jsonb) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.limits FROM rate_limit._several('credit', calls, false) AS s
$function$;
COMMENT ON FUNCTION rate_limit.credit_all_with IS 'Gives tokens back to several buckets.';
