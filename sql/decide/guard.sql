-- Raises an error if a limit, bucket, item or clock of a batch would corrupt a row. The caller has to check with
-- _validate which options apply to which kind.
CREATE OR REPLACE FUNCTION rate_limit._guard(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_resolutions integer[], limit_shards integer[], bucket_names text[],
  bucket_keys text[], item_buckets integer[], item_limits integer[], item_counts double precision[], call_ops text[],
  call_ats bigint[]
) RETURNS void LANGUAGE plpgsql STABLE
AS $function$
DECLARE
  l integer;
  capacity double precision;
BEGIN
  FOR l IN 1 .. coalesce(cardinality(limit_kinds), 0) LOOP
    IF NOT coalesce(
      rate_limit._in_range(limit_rates[l], limit_periods[l], coalesce(limit_capacities[l], limit_rates[l]))
        -- Negative: the headroom, which is at most the capacity.
        AND coalesce(limit_max_reserved[l] BETWEEN - coalesce(limit_capacities[l], limit_rates[l]) AND 1e13, true)
        AND coalesce(limit_resolutions[l], 1) BETWEEN 1 AND 1000 AND coalesce(limit_shards[l], 1) BETWEEN 1 AND 1000,
      false)
    THEN
      RAISE EXCEPTION 'limit % is not valid', l
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Call _validate.';
    END IF;
  END LOOP;
  IF array_position(bucket_names, NULL) IS NOT NULL OR array_position(bucket_keys, NULL) IS NOT NULL
    OR NOT coalesce(1 <= ALL (item_buckets) AND cardinality(bucket_names) >= ALL (item_buckets), item_buckets IS NULL)
    OR NOT coalesce(1 <= ALL (item_limits) AND cardinality(limit_kinds) >= ALL (item_limits), item_limits IS NULL)
    OR coalesce(cardinality(limit_kinds), 0) = 0
  THEN
    RAISE EXCEPTION 'an item names a limit or a bucket that is not listed or not valid'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call _validate; indices count from 1.';
  END IF;
  FOR item IN 1 .. coalesce(cardinality(item_counts), 0) LOOP
    l := coalesce(item_limits[item], 1);
    capacity := coalesce(limit_capacities[l], limit_rates[l]);
    IF NOT coalesce(item_counts[item] = 0 OR rate_limit._is_exact(item_counts[item], capacity), false) THEN
      RAISE EXCEPTION 'invalid_count: the count % for the limit "%" is not 0 or %', coalesce(item_counts[item]::text, 'NULL'),
        bucket_names[coalesce(item_buckets[item], item)], rate_limit._exact_values(item_counts[item], capacity)
        USING ERRCODE = 'invalid_parameter_value',
          HINT = format('Use 0, or %s.', rate_limit._exact_values(item_counts[item], capacity));
    END IF;
  END LOOP;
  -- A clock set by the caller could block a key for a century, or fill a bucket too early. The caller is the role of SET
  -- ROLE, or else the login role; within this function current_user is the owner.
  IF call_ats IS NOT NULL AND (call_ops <@ ARRAY['check', 'peek']) IS NOT TRUE -- they write nothing
    AND NOT pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user)::name, current_user, 'MEMBER')
  THEN
    RAISE EXCEPTION 'a clock was given, which only the owner of the functions may set'
      USING ERRCODE = 'insufficient_privilege', HINT = 'Leave `at` out for the database''s clock.';
  END IF;
END
$function$;
