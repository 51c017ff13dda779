-- Lets a lease end `lease` after now: NULL, the lease of the stored limit, or 30 seconds without one. Returns false if it has
-- ended or was released: then its slots may be taken by others.
CREATE OR REPLACE FUNCTION rate_limit.renew(
  name text, key text, lease_id bigint, lease interval DEFAULT NULL
) RETURNS boolean LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
  SELECT d.call_admitted[1] = 1
  FROM rate_limit._rule(
    name, key, 'concurrency', 1,
    coalesce(
      lease,
      (
        SELECT CASE d.kind WHEN 'concurrency' THEN d.period * interval '1 microsecond' END
        FROM rate_limit.definitions AS d
        WHERE d.name = renew.name
        ORDER BY d.version DESC
        LIMIT 1
      ),
      '30 seconds'),
    NULL, NULL, NULL, NULL, 1) AS r
  CROSS JOIN LATERAL rate_limit._decide(
    ARRAY['concurrency'], ARRAY[1], ARRAY[r.period], NULL, NULL, NULL, NULL, NULL,
    ARRAY[name], ARRAY[key], ARRAY[1], ARRAY[1], ARRAY[1], ARRAY['renew'], NULL, ARRAY[1], NULL, NULL, ARRAY[lease_id]) AS d
$function$;
COMMENT ON FUNCTION rate_limit.renew IS 'Lets a lease end later.';
