-- Adds a definition, without a kind to end the limit. Returns false if the last one is the same.
CREATE OR REPLACE FUNCTION rate_limit._redefine(rule rate_limit.definitions) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off
AS $function$
DECLARE
  former rate_limit.definitions;
BEGIN
  SELECT d.*
  INTO former
  FROM rate_limit.definitions AS d
  WHERE d.name = rule.name
  ORDER BY d.version DESC
  LIMIT 1;
  IF (
      former.kind, former.rate, former.period, former.capacity, former.max_reserved, former.start, former.resolution,
      former.shards
    ) IS NOT DISTINCT FROM (
      rule.kind, rule.rate, rule.period, rule.capacity, rule.max_reserved, rule.start, rule.resolution, rule.shards
    )
  THEN
    RETURN false;
  END IF;
  -- The author is the role of SET ROLE, or else the login role; within this function current_user is the owner.
  INSERT INTO rate_limit.definitions (
    name, version, kind, rate, period, capacity, max_reserved, start, resolution, shards, defined_at, defined_by
  )
  VALUES (
    rule.name, coalesce(former.version, 0) + 1, rule.kind, rule.rate, rule.period, rule.capacity, rule.max_reserved, rule.start,
    rule.resolution, rule.shards, clock_timestamp(), coalesce(nullif(current_setting('role'), 'none'), session_user)
  )
  ON CONFLICT ON CONSTRAINT definitions_pkey DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'another transaction has just defined the limit "%"', rule.name
      USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
  END IF;
  PERFORM rate_limit._notify('rate_limit_limits', rule.name COLLATE "default"); -- for programs that follow the stored limits
  RETURN true;
END
$function$;
