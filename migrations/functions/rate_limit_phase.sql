-- rate_limit_phase(text, text)
-- SHA-256: d67459e0a023d0d299f0b3c15ca16db1d221c5b25f61e6ed179be36b30aff079

-- Returns the phase of the windows of a fixed window without a start: derived from the bucket, so every process gets the same
-- one.
CREATE OR REPLACE FUNCTION public.rate_limit_phase(bucket_name text, bucket_key text) RETURNS bigint LANGUAGE sql STABLE
AS $function$
  SELECT ('x' || pg_catalog.substr(pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
    bucket_name || ':' || bucket_key, 'UTF8')), 'hex'), 1, 14))::bit(56)::bigint
$function$;
COMMENT ON FUNCTION public.rate_limit_phase IS 'Returns where the windows of a fixed window without a start begin.';
