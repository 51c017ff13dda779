-- Writes a row as `after`, or deletes it if `after` has no `ts`. With `compares`, it writes only if the row is still equal to
-- `before`. Returns whether it wrote.
CREATE OR REPLACE FUNCTION rate_limit._write(
  before rate_limit.rate_limits, after rate_limit.rate_limits, compares boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  IF after.ts IS NULL THEN
    DELETE FROM rate_limit.rate_limits AS r
    WHERE r.name = before.name AND r.key = before.key AND r.shard = before.shard
      AND (NOT compares OR (r.value = before.value AND r.ts = before.ts));
  ELSIF compares THEN
    UPDATE rate_limit.rate_limits AS r
    SET shards = after.shards, value = after.value, ts = after.ts, idle_at = after.idle_at, detail = after.detail
    WHERE r.name = before.name AND r.key = before.key AND r.shard = before.shard AND r.shards = before.shards
      AND r.value = before.value AND r.ts = before.ts AND r.detail IS NOT DISTINCT FROM before.detail;
  ELSE
    UPDATE rate_limit.rate_limits AS r
    SET shards = after.shards, value = after.value, ts = after.ts, idle_at = after.idle_at, detail = after.detail
    WHERE r.name = after.name AND r.key = after.key AND r.shard = after.shard;
  END IF;
  RETURN FOUND;
END
$function$;
