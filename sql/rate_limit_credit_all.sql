-- Gives tokens back to several buckets, up to their capacities. The elements of `calls` and the objects of `limits` are those of
-- rate_limit_all, without a headroom, and without gates and concurrency limits.
--   SELECT rate_limit_credit_all('[{"name": "llm_tokens", "key": "u1", "kind": "token_bucket", "rate": 9000, "period": "1 minute", "count": 250}]');
CREATE OR REPLACE FUNCTION public.rate_limit_credit_all(calls jsonb, OUT limits jsonb) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.limits FROM public.rate_limit_several('credit', calls, false) AS s
$function$;
COMMENT ON FUNCTION public.rate_limit_credit_all IS 'Gives tokens back to several buckets.';
