-- rate_limit_write(rate_limits, rate_limits, boolean)
-- SHA-256: 570d7c28ea07445b41db772c43a36a75f749dfbb9a264ac42b08b4e888315546

-- Writes a row as `after`, or deletes it if `after` has no `ts`. With `compares`, it writes only if the row is still equal to
-- `before`. Returns whether it wrote.
CREATE OR REPLACE FUNCTION public.rate_limit_write(
  before public.rate_limits, after public.rate_limits, compares boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  IF after.ts IS NULL THEN
    DELETE FROM public.rate_limits AS r
    WHERE r.name = before.name AND r.key = before.key AND r.shard = before.shard
      AND (NOT compares OR (r.value = before.value AND r.ts = before.ts));
  ELSIF compares THEN
    UPDATE public.rate_limits AS r
    SET shards = after.shards, value = after.value, ts = after.ts, idle_at = after.idle_at, earlier_counts = after.earlier_counts
    WHERE r.name = before.name AND r.key = before.key AND r.shard = before.shard AND r.shards = before.shards
      AND r.value = before.value AND r.ts = before.ts AND r.earlier_counts IS NOT DISTINCT FROM before.earlier_counts;
  ELSE
    UPDATE public.rate_limits AS r
    SET shards = after.shards, value = after.value, ts = after.ts, idle_at = after.idle_at, earlier_counts = after.earlier_counts
    WHERE r.name = after.name AND r.key = after.key AND r.shard = after.shard;
  END IF;
  RETURN FOUND;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_write IS 'Writes or deletes a row, optionally only if it is unchanged.';
