-- Returns the names of all limits that have a row, each once, by one search of the primary key for each name.
CREATE OR REPLACE FUNCTION rate_limit._names() RETURNS SETOF text LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  last_name text := '';
BEGIN
  LOOP
    SELECT r.name INTO last_name
    FROM rate_limit.rate_limits AS r
    WHERE r.name > last_name
    ORDER BY r.name, r.key, r.shard
    LIMIT 1;
    EXIT WHEN NOT FOUND;
    RETURN NEXT last_name;
  END LOOP;
END
$function$;
