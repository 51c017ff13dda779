-- rate_limit_slots_freed(text[], text[], text[], integer[], integer[], double precision[])
-- SHA-256: f84afe0c15ec9fa5b08b5894bc78ae3260e84047f921308ab470eabf36885054

-- Wakes groups after calls that have released or reset buckets: as many as slots are free. The arguments are those of
-- rate_limit_decide_each; item_values are the free slots after each item.
CREATE OR REPLACE FUNCTION public.rate_limit_slots_freed(
  limit_kinds text[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_values double precision[]
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  freed record;
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM public.rate_limit_groups AS g
    WHERE g.slot_name IS NOT NULL
  )
  THEN
    RETURN;
  END IF;
  FOR freed IN
    SELECT i.bucket, (array_agg(i.value ORDER BY i.nth DESC))[1] AS value
    FROM (
      SELECT coalesce(item_buckets[u.nth], u.nth::integer) AS bucket, coalesce(item_limits[u.nth], 1) AS nth_limit, u.nth, u.value
      FROM unnest(item_values) WITH ORDINALITY AS u (value, nth)
    ) AS i
    WHERE limit_kinds[i.nth_limit] = 'concurrency'
    GROUP BY i.bucket
    ORDER BY i.bucket
  LOOP
    -- rate_limit_release does not know the capacity, so it may return fewer than one free slot.
    PERFORM public.rate_limit_wake_groups(
      bucket_names[freed.bucket], bucket_keys[freed.bucket], greatest(freed.value, 1)::integer, NULL, NULL, false);
  END LOOP;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_slots_freed IS 'Wakes groups that wait for slots which calls have given back.';
