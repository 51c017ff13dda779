-- Brings forward the next look at groups that wait for slots of a bucket: in each queue, those that have waited longest. The
-- caller has locked the row of the bucket.
--
--   most       how many groups are to look now
--   max_count  only groups that need at most so many slots; NULL: all
--   ends_at    when the next lease ends: the first group looks then at the latest; NULL: as before
--   skips      leaves groups alone that other transactions have locked. A claim, which has locked groups, waits for none
CREATE OR REPLACE FUNCTION rate_limit._wake_groups(
  bucket_name text, bucket_key text, most integer, max_count double precision, ends_at bigint, skips boolean
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := rate_limit._clock();
  waiting_queue text := '';
  keys text[];
BEGIN
  LOOP
    SELECT g.queue INTO waiting_queue
    FROM rate_limit.groups AS g
    WHERE g.slot_name = bucket_name AND g.slot_key = bucket_key AND g.queue > waiting_queue
    ORDER BY g.queue
    LIMIT 1;
    EXIT WHEN NOT FOUND;
    IF skips THEN
      keys := ARRAY(
        SELECT g.key
        FROM rate_limit.groups AS g
        WHERE g.slot_name = bucket_name AND g.slot_key = bucket_key AND g.queue = waiting_queue
          AND g.slot_count <= coalesce(max_count, g.slot_count) AND g.not_before > greatest(clock, g.held_until)
        ORDER BY g.slot_since, g.key
        LIMIT most
        FOR NO KEY UPDATE SKIP LOCKED
      );
    ELSE
      keys := ARRAY(
        SELECT g.key
        FROM rate_limit.groups AS g
        WHERE g.slot_name = bucket_name AND g.slot_key = bucket_key AND g.queue = waiting_queue
          AND g.slot_count <= coalesce(max_count, g.slot_count) AND g.not_before > greatest(clock, g.held_until)
        ORDER BY g.slot_since, g.key
        LIMIT most
        FOR NO KEY UPDATE
      );
    END IF;
    IF keys <> '{}' THEN
      UPDATE rate_limit.groups AS g
      SET not_before = g.held_until, slot_pause = NULL
      WHERE g.queue = waiting_queue AND g.key = ANY ((SELECT keys)::text[]);
      PERFORM rate_limit._ring(waiting_queue, clock);
    END IF;
    IF ends_at IS NOT NULL THEN
      UPDATE rate_limit.groups AS g
      SET not_before = greatest(ends_at, g.held_until)
      FROM (
        SELECT o.key
        FROM rate_limit.groups AS o
        WHERE o.slot_name = bucket_name AND o.slot_key = bucket_key AND o.queue = waiting_queue
        ORDER BY o.slot_since, o.key
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
      ) AS f
      WHERE g.queue = waiting_queue AND g.key = f.key AND g.not_before > greatest(ends_at, g.held_until);
      IF FOUND THEN
        PERFORM rate_limit._ring(waiting_queue, ends_at);
      END IF;
    END IF;
  END LOOP;
END
$function$;

-- Wakes groups after calls that have released or reset buckets: as many as slots are free. The arguments are those of
-- _decide_each; item_values are the free slots after each item. Without bucket_keys, all keys of the first limit were reset.
CREATE OR REPLACE FUNCTION rate_limit._slots_freed(
  limit_kinds text[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_values double precision[]
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  freed record;
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM rate_limit.groups AS g
    WHERE g.slot_name IS NOT NULL
  )
  THEN
    RETURN;
  END IF;
  IF bucket_keys IS NULL THEN
    PERFORM rate_limit._wake_groups(bucket_names[1] COLLATE pg_catalog."default", w.slot_key, 1, NULL, NULL, false)
    FROM (
      SELECT DISTINCT g.slot_key
      FROM rate_limit.groups AS g
      WHERE g.slot_name = bucket_names[1]
      ORDER BY g.slot_key
    ) AS w;
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
    -- rate_limit.release does not know the capacity, so it may return fewer than one free slot.
    PERFORM rate_limit._wake_groups(
      bucket_names[freed.bucket], bucket_keys[freed.bucket], greatest(freed.value, 1)::integer, NULL, NULL, false);
  END LOOP;
END
$function$;

-- Ends a claim's decisions on a bucket of slots. If slots are still free, it wakes groups that can take them. Otherwise the
-- first group that waits looks again when the next lease ends.
CREATE OR REPLACE FUNCTION rate_limit._pass_slots_on(
  bucket rate_limit.rate_limits, capacity double precision, clock bigint
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  leases double precision[];
  free double precision := capacity;
BEGIN
  IF bucket.ts IS NULL THEN
    RETURN;
  END IF;
  leases := rate_limit._leases_at(bucket.detail, greatest(clock, bucket.ts));
  FOR nth IN 1 .. cardinality(leases) / 3 LOOP
    free := free - leases[3 * nth + 1];
  END LOOP;
  PERFORM rate_limit._wake_groups(
    bucket.name COLLATE "default", bucket.key, greatest(free, 0)::integer, free, leases[2]::bigint, true);
END
$function$;
