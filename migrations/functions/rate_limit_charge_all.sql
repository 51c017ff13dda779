-- rate_limit_charge_all(jsonb)
-- SHA-256: f006b63c2d834a0b93747b364a4a49937eacdd2b28ad181e45aa1c34a157aa03

-- Takes tokens from several buckets whatever their balances, for usage that is only known afterwards. The elements of `calls` and
-- the objects of `limits` are those of rate_limit_all, without a headroom, and without gates and concurrency limits.
--   SELECT rate_limit_charge_all('[{"name": "llm_tokens", "key": "u1", "kind": "token_bucket", "rate": 9000, "period": "1 minute", "count": 250}]');
CREATE OR REPLACE FUNCTION public.rate_limit_charge_all(calls jsonb, OUT limits jsonb) LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
  SELECT s.limits FROM public.rate_limit_several('charge', calls, false) AS s
$function$;
COMMENT ON FUNCTION public.rate_limit_charge_all IS 'Takes tokens from several buckets, whatever their balances.';
