-- rate_limit_blocked(text, text)
-- SHA-256: 458e4c3fb7b634ec952467f794d4cb24ff75ec7e39fb4014e9079e0de505edc1

-- Returns the rest of the block of a key of a gate, or NULL if it is not blocked.
--   SELECT rate_limit_blocked('banned', '203.0.113.7');
CREATE OR REPLACE FUNCTION public.rate_limit_blocked(name text, key text) RETURNS interval LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
  SELECT public.rate_limit_validate_item(NULL, name, key, 'token_bucket', 1, '1 microsecond', 0, 0, NULL, NULL, 1);
  SELECT d.rest * interval '1 microsecond'
  FROM (
    SELECT r.ts - r.value - greatest(public.rate_limit_clock(), r.ts) AS rest
    FROM public.rate_limits AS r
    WHERE r.name = rate_limit_blocked.name AND r.key = rate_limit_blocked.key AND r.shard = 0
    OFFSET 0
  ) AS d
  WHERE d.rest > 0
$function$;
COMMENT ON FUNCTION public.rate_limit_blocked IS 'Returns the rest of the block of a key of a gate, or NULL.';
