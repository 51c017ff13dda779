-- rate_limit_start_jobs(text, integer, bigint, bigint, rate_limit_groups[], bigint[], bigint[], integer, text[], text[], double precision[], bigint[], double precision[], bigint[])
-- SHA-256: dd017cba4dffc66c1c1f13aeb93e4716f3d318190fc6ea0fb178ba2a6eb717ea

-- Starts jobs of groups that a claim has locked, as far as the limits allow it: the due jobs, the jobs that have paid ahead,
-- and the jobs in the lines of the groups. It locks these jobs and takes their tokens; the caller writes their state.
--
--   groups           no job of a group starts before its not_before
--   lowest_priority  jobs in lines with a lower priority are left alone; NULL: none are
--   results          started_ids start at started_ats, or as soon as possible after that. stopped_ids: the first jobs that
--                    cannot start, one of each group that stops; stopped_ats: when to claim from their groups again
CREATE OR REPLACE FUNCTION public.rate_limit_start_jobs(
  queue_name text, most integer, clock bigint, horizon bigint, groups public.rate_limit_groups[], due_ids bigint[],
  front_ids bigint[], lowest_priority integer, limit_names text[], limit_kinds text[], limit_rates double precision[],
  limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[], OUT started_ids bigint[],
  OUT started_ats bigint[], OUT stopped_ids bigint[], OUT stopped_ats bigint[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  keys CONSTANT text[] := ARRAY(SELECT g.key FROM unnest(groups) AS g);
  job_ids bigint[]; -- the jobs at hand, in the order in which they are to start
  is_contended boolean; -- whether a job has paid ahead, or was denied before
  repaid_ids bigint[] := '{}';
  paid_ids bigint[] := '{}';
  stopped_keys text[];
  answer record;
  job_group public.rate_limit_groups;
  groups_left public.rate_limit_groups[];
  payer_ids bigint[];
  payer_items integer[];
  payer_ats bigint[];
  payer_ready_ats bigint[];
BEGIN
  started_ids := '{}';
  started_ats := '{}';
  stopped_ids := '{}';
  stopped_ats := '{}';
  -- A new statement reads the lines, so that it sees what earlier claims have left.
  SELECT coalesce(array_agg(l.id), '{}'), bool_or(l.is_contended) INTO job_ids, is_contended
  FROM (
    SELECT j.id, j.paid_until IS NOT NULL OR j.id = ANY (ARRAY(SELECT g.refused_job FROM unnest(groups) AS g)) AS is_contended
    FROM public.rate_limit_jobs AS j
    WHERE j.id = ANY (
      due_ids || front_ids || ARRAY(
        SELECT h.id
        FROM unnest(keys) AS k
        CROSS JOIN LATERAL (
          SELECT j.id
          FROM public.rate_limit_jobs AS j
          WHERE j.queue = queue_name AND j.key = k AND j.state = 'available'
            AND j.limit_names <@ rate_limit_start_jobs.limit_names AND j.priority >= coalesce(lowest_priority, j.priority)
          ORDER BY j.priority DESC, j.run_at, j.id
          LIMIT most
        ) AS h
      ))
      AND j.state IN ('scheduled', 'available') AND j.key = ANY (keys) AND j.run_at <= horizon
    ORDER BY j.paid_until IS NULL, greatest(j.run_at, clock), j.priority DESC, j.run_at, j.id
    LIMIT most
    FOR NO KEY UPDATE SKIP LOCKED
  ) AS l;

  IF is_contended THEN
    -- A group may be claimed before the time of its job that has paid ahead. Then it stops.
    SELECT coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.paid_until), '{}'), coalesce(array_agg(s.key), '{}')
    INTO stopped_ids, stopped_ats, stopped_keys
    FROM (
      SELECT DISTINCT ON (j.key) j.key, j.id, j.paid_until
      FROM unnest(job_ids) WITH ORDINALITY AS u (id, nth)
      JOIN public.rate_limit_jobs AS j ON j.id = u.id
      WHERE j.paid_until > horizon
      ORDER BY j.key, u.nth
    ) AS s;
    groups := ARRAY(SELECT g FROM unnest(groups) AS g WHERE g.key <> ALL (stopped_keys));
    repaid_ids := public.rate_limit_repay_jobs(
      job_ids, groups, clock, horizon, limit_names, limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts);
  END IF;

  WHILE cardinality(groups) > 0 LOOP
    groups_left := '{}';
    payer_ids := '{}';
    payer_items := '{}';
    payer_ats := '{}';
    payer_ready_ats := '{}';
    FOR answer IN
      SELECT a.*
      FROM public.rate_limit_ask_to_start(
        job_ids, started_ids, groups, clock, horizon, limit_names, limit_kinds, limit_rates, limit_periods,
        limit_capacities, limit_starts
      ) AS a
    LOOP
      started_ids := started_ids || answer.admitted_ids;
      started_ats := started_ats || array_fill(answer.starts_at, ARRAY[cardinality(answer.admitted_ids)]);
      IF answer.goes_on THEN
        job_group := answer.job_group;
        job_group.not_before := answer.ready_at;
        groups_left := groups_left || job_group;
      ELSIF answer.pays THEN
        payer_ids := payer_ids || answer.refused_id;
        payer_items := payer_items || answer.slowest_item;
        payer_ats := payer_ats || answer.asked_at;
        payer_ready_ats := payer_ready_ats || answer.ready_at;
      ELSIF answer.stops THEN
        stopped_ids := stopped_ids || answer.refused_id;
        stopped_ats := stopped_ats || answer.ready_at;
      END IF;
    END LOOP;
    groups := groups_left;
    IF payer_ids <> '{}' THEN
      SELECT p.untils, paid_ids || p.payers INTO payer_ready_ats, paid_ids
      FROM public.rate_limit_pay_ahead(
        payer_ids, payer_items, payer_ats, payer_ready_ats, limit_names, limit_kinds, limit_rates, limit_periods,
        limit_capacities, limit_starts
      ) AS p;
      stopped_ids := stopped_ids || payer_ids;
      stopped_ats := stopped_ats || payer_ready_ats;
    END IF;
  END LOOP;

  IF repaid_ids <> '{}' THEN -- Jobs that neither start nor pay again have no payment any more.
    UPDATE public.rate_limit_jobs AS j
    SET paid_until = NULL, paid_item = NULL
    WHERE j.id = ANY (repaid_ids) AND j.id <> ALL (started_ids || paid_ids);
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_start_jobs IS 'Takes the tokens of the jobs that a claim starts.';
