-- Returns the total tokens that all calls together take from each bucket or leave in it. NULL for a bucket that a call credits,
-- resets or peeks at, because such a call needs the bucket's whole balance.
CREATE OR REPLACE FUNCTION rate_limit._amounts(
  limit_max_reserved double precision[], buckets integer, item_buckets integer[], item_limits integer[],
  item_counts double precision[], call_ops text[], call_sizes integer[], call_times integer[]
) RETURNS double precision[] LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  amounts double precision[];
  last_item integer := 0;
  op text;
  b integer;
BEGIN
  FOR nth IN 1 .. coalesce(cardinality(call_sizes), cardinality(item_buckets), buckets) LOOP
    op := coalesce(call_ops[nth], 'limit');
    FOR item IN last_item + 1 .. last_item + coalesce(call_sizes[nth], 1) LOOP
      b := coalesce(item_buckets[item], item);
      amounts[b] := coalesce(amounts[b], 0)
        + CASE
          WHEN op IN ('limit', 'charge') OR (op = 'check' AND coalesce(item_counts[item], 1) > 0)
          THEN coalesce(item_counts[item], 1) * coalesce(call_times[nth], 1)
            - least(limit_max_reserved[coalesce(item_limits[item], 1)], 0) -- the headroom
          ELSE 'NaN'
        END;
      last_item := item;
    END LOOP;
  END LOOP;
  RETURN array_replace(amounts, 'NaN', NULL);
END
$function$;
