-- Locks the rows of these buckets, in the order of all calls. So two transactions that lock several of the same buckets in more
-- than one statement do not wait for each other.
CREATE OR REPLACE FUNCTION rate_limit._lock_buckets(bucket_names text[], bucket_keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  bucket record;
BEGIN
  FOR bucket IN
    SELECT DISTINCT u.name COLLATE "C" AS name, u.key COLLATE "C" AS key
    FROM unnest(bucket_names, bucket_keys) AS u (name, key)
    ORDER BY 1, 2
  LOOP
    PERFORM rate_limit._bucket_rows(bucket.name COLLATE "default", bucket.key, 1, true, true);
  END LOOP;
END
$function$;
COMMENT ON FUNCTION rate_limit._lock_buckets IS 'Locks the rows of buckets in the order of all calls.';
