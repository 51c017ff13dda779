-- rate_limit_wake_groups(text, text, integer, double precision, bigint, boolean)
-- SHA-256: 6491f0e6ea56f62aadb51efa180cce640a3587d691efe259c2352b477839249a

-- Brings forward the next look at groups that wait for slots of a bucket: in each queue, those that have waited longest. The
-- caller has locked the row of the bucket.
--
--   most       how many groups are to look now
--   max_count  only groups that need at most so many slots; NULL: all
--   ends_at    when the next lease ends: the first group looks then at the latest; NULL: as before
--   skips      leaves groups alone that other transactions have locked. A claim, which has locked groups, waits for none
CREATE OR REPLACE FUNCTION public.rate_limit_wake_groups(
  bucket_name text, bucket_key text, most integer, max_count double precision, ends_at bigint, skips boolean
) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  waiting_queue text := '';
  keys text[];
BEGIN
  LOOP
    SELECT g.queue INTO waiting_queue
    FROM public.rate_limit_groups AS g
    WHERE g.slot_name = bucket_name AND g.slot_key = bucket_key AND g.queue > waiting_queue
    ORDER BY g.queue
    LIMIT 1;
    EXIT WHEN NOT FOUND;
    IF skips THEN
      keys := ARRAY(
        SELECT g.key
        FROM public.rate_limit_groups AS g
        WHERE g.slot_name = bucket_name AND g.slot_key = bucket_key AND g.queue = waiting_queue
          AND g.slot_count <= coalesce(max_count, g.slot_count) AND g.not_before > greatest(clock, g.held_until)
        ORDER BY g.slot_since, g.key
        LIMIT most
        FOR NO KEY UPDATE SKIP LOCKED
      );
    ELSE
      keys := ARRAY(
        SELECT g.key
        FROM public.rate_limit_groups AS g
        WHERE g.slot_name = bucket_name AND g.slot_key = bucket_key AND g.queue = waiting_queue
          AND g.slot_count <= coalesce(max_count, g.slot_count) AND g.not_before > greatest(clock, g.held_until)
        ORDER BY g.slot_since, g.key
        LIMIT most
        FOR NO KEY UPDATE
      );
    END IF;
    IF keys <> '{}' THEN
      UPDATE public.rate_limit_groups AS g
      SET not_before = g.held_until, slot_pause = NULL
      WHERE g.queue = waiting_queue AND g.key = ANY (keys);
      PERFORM public.rate_limit_ring(waiting_queue, clock);
    END IF;
    IF ends_at IS NOT NULL THEN
      UPDATE public.rate_limit_groups AS g
      SET not_before = greatest(ends_at, g.held_until)
      FROM (
        SELECT o.key
        FROM public.rate_limit_groups AS o
        WHERE o.slot_name = bucket_name AND o.slot_key = bucket_key AND o.queue = waiting_queue
        ORDER BY o.slot_since, o.key
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
      ) AS f
      WHERE g.queue = waiting_queue AND g.key = f.key AND g.not_before > greatest(ends_at, g.held_until);
      IF FOUND THEN
        PERFORM public.rate_limit_ring(waiting_queue, ends_at);
      END IF;
    END IF;
  END LOOP;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_wake_groups IS 'Lets groups that wait for slots look for them again.';
