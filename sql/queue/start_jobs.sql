-- Locks the jobs that a claim starts, and takes their tokens. It starts jobs of groups that the claim has locked, as far as the
-- limits allow: the due jobs, the jobs that have paid ahead, and the jobs in the lines of the groups. The caller writes their
-- state.
--
--   groups           no job of a group starts before its not_before
--   lowest_priority  jobs in lines with a lower priority are left alone; NULL: none are
--   lowest_id        the first due job of the lowest priority, if there are several priorities
--   passed_over      how many other jobs have started while one of the lowest priority was due, and `passed` after this
--   slot_*           the concurrency limits that the worker knows
--   results          started_ids start at started_ats, or as soon as possible after that, and hold slots under started_leases.
--                    stopped_ids: the first jobs that cannot start, one of each group that stops; stopped_ats: when to claim
--                    from their groups again. waiting: the groups that stop because slots are taken. slot_buckets: the rows of
--                    the slots, locked and written; a row that another transaction has locked has no `ts`. Both are NULL if no
--                    job or group at hand needs slots
CREATE OR REPLACE FUNCTION rate_limit._start_jobs(
  queue_name text, most integer, clock bigint, horizon bigint, groups rate_limit.groups[], due_ids bigint[],
  front_ids bigint[], lowest_id bigint, lowest_priority integer, passed_over integer, limit_names text[], limit_kinds text[],
  limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[],
  slot_limit_names text[], slot_capacities double precision[], slot_periods bigint[], OUT started_ids bigint[],
  OUT started_ats bigint[], OUT started_leases bigint[], OUT stopped_ids bigint[], OUT stopped_ats bigint[],
  OUT waiting rate_limit.groups[], OUT slot_buckets rate_limit.rate_limits[], OUT passed integer
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  all_groups CONSTANT rate_limit.groups[] := groups;
  pick record; -- the jobs at hand, in the order in which they are to start
  repaid_ids bigint[] := '{}';
  paid_ids bigint[] := '{}';
  turn_id bigint; -- the job of the lowest priority, if nine others have started before it; it pays ahead if it is denied once
  stopped_keys text[];
  answer record;
  job_group rate_limit.groups;
  groups_left rate_limit.groups[];
  payer_ids bigint[];
  payer_items integer[];
  payer_ats bigint[];
  payer_ready_ats bigint[];
  has_slots boolean; -- whether jobs at hand need slots, or their groups wait for some
  holders record; -- the jobs that have taken slots in this round
  holder_ids bigint[] := '{}'; -- the jobs that have taken slots, and their leases
  holder_leases bigint[] := '{}';
  is_freed boolean; -- whether slots were given back, because the limits deny the job
BEGIN
  started_ids := '{}';
  started_ats := '{}';
  stopped_ids := '{}';
  stopped_ats := '{}';
  pick := rate_limit._pick_jobs(
    queue_name, most, clock, horizon, groups, due_ids, front_ids, lowest_id, lowest_priority, 9 - passed_over, limit_names,
    slot_limit_names);
  turn_id := CASE WHEN passed_over >= 9 THEN pick.turn_id END;
  IF pick.is_contended THEN
    -- A group may be claimed before the time of its job that has paid ahead. Then it stops.
    SELECT coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.paid_until), '{}'), coalesce(array_agg(s.key), '{}')
    INTO stopped_ids, stopped_ats, stopped_keys
    FROM (
      SELECT DISTINCT ON (j.key) j.key, j.id, j.paid_until
      FROM unnest((SELECT pick.job_ids)) WITH ORDINALITY AS u (id, nth)
      JOIN rate_limit.jobs AS j ON j.id = u.id
      WHERE j.paid_until > (SELECT horizon)
      ORDER BY j.key, u.nth
    ) AS s;
    groups := ARRAY(SELECT g FROM unnest(groups) AS g WHERE g.key <> ALL (stopped_keys));
    repaid_ids := rate_limit._repay_jobs(
      pick.job_ids, groups, clock, horizon, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END IF;

  has_slots := coalesce(pick.has_slots, false) OR EXISTS (SELECT FROM unnest(groups) AS g WHERE g.slot_name IS NOT NULL);
  IF has_slots THEN
    waiting := '{}';
    slot_buckets := rate_limit._lock_slots(pick.job_ids, groups, clock, slot_limit_names);
  END IF;

  WHILE cardinality(groups) > 0 LOOP
    groups_left := '{}';
    IF has_slots THEN
      holders := rate_limit._ask_slots(
        pick.job_ids, started_ids, groups, clock, horizon - clock, slot_limit_names, slot_capacities, slot_periods,
        slot_buckets);
      slot_buckets := holders.buckets;
      started_ids := started_ids || holders.started_ids;
      started_ats := started_ats || holders.started_ats;
      groups := holders.asking;
    END IF;
    payer_ids := '{}';
    payer_items := '{}';
    payer_ats := '{}';
    payer_ready_ats := '{}';
    FOR answer IN
      SELECT a.*
      FROM rate_limit._ask_to_start(
        pick.job_ids, started_ids, groups, clock, horizon, limit_names, limit_kinds, limit_rates, limit_periods,
        limit_capacities, limit_starts
      ) AS a
    LOOP
      started_ids := started_ids || answer.admitted_ids;
      started_ats := started_ats || array_fill(answer.starts_at, ARRAY[cardinality(answer.admitted_ids)]);
      IF answer.goes_on THEN
        job_group := answer.job_group;
        job_group.not_before := answer.ready_at;
        job_group.refused_job := CASE WHEN answer.admitted_ids = '{}' THEN job_group.refused_job END;
        groups_left := groups_left || job_group;
      ELSIF answer.pays OR (answer.stops AND answer.refused_id = turn_id) THEN
        payer_ids := payer_ids || answer.refused_id;
        payer_items := payer_items || answer.slowest_item;
        payer_ats := payer_ats || answer.asked_at;
        payer_ready_ats := payer_ready_ats || answer.ready_at;
      ELSIF answer.stops THEN
        stopped_ids := stopped_ids || answer.refused_id;
        stopped_ats := stopped_ats || answer.ready_at;
      END IF;
    END LOOP;
    IF has_slots THEN
      is_freed := false;
      FOR nth IN 1 .. cardinality(holders.holder_ids) LOOP
        IF holders.holder_ids[nth] = ANY (started_ids) THEN
          holder_ids := holder_ids || holders.holder_ids[nth];
          holder_leases := holder_leases || holders.holder_leases[nth];
        ELSE
          slot_buckets := rate_limit._unask_slots(holders.holder_leases[nth], clock, slot_buckets);
          is_freed := true;
        END IF;
      END LOOP;
      IF is_freed THEN -- Groups that wait may take these slots.
        groups_left := groups_left || ARRAY(
          SELECT g
          FROM unnest(all_groups) AS g
          WHERE g.key = ANY (ARRAY(SELECT w.key FROM unnest(holders.waiting) AS w))
        );
      ELSE
        waiting := waiting || holders.waiting;
      END IF;
    END IF;
    groups := groups_left;
    IF payer_ids <> '{}' THEN
      SELECT p.untils, paid_ids || p.payers INTO payer_ready_ats, paid_ids
      FROM rate_limit._pay_ahead(
        payer_ids, payer_items, payer_ats, payer_ready_ats, turn_id, limit_names, limit_kinds, limit_rates, limit_periods,
        limit_capacities, limit_starts
      ) AS p;
      stopped_ids := stopped_ids || payer_ids;
      stopped_ats := stopped_ats || payer_ready_ats;
    END IF;
  END LOOP;

  started_leases := array_fill(NULL::bigint, ARRAY[cardinality(started_ids)]); -- NULL for a job without slots
  FOR nth IN 1 .. cardinality(holder_ids) LOOP
    started_leases[array_position(started_ids, holder_ids[nth])] := holder_leases[nth];
  END LOOP;
  PERFORM rate_limit._write(b, b, false)
  FROM unnest(slot_buckets) AS b WHERE b.ts IS NOT NULL;

  passed := CASE WHEN pick.turn_id <> ALL (started_ids) THEN passed_over + cardinality(started_ids) ELSE 0 END;
  IF repaid_ids <> '{}' THEN -- Jobs that neither start nor pay again have no payment any more.
    UPDATE rate_limit.jobs AS j
    SET paid_until = NULL, paid_item = NULL
    WHERE j.id = ANY ((SELECT repaid_ids)::bigint[]) AND j.id <> ALL (started_ids || paid_ids);
  END IF;
END
$function$;
