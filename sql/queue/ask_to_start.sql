-- Takes the tokens of the next jobs of each group, in one round of a claim. It makes one call for each group: for its first
-- job that has not started, and for the jobs after it that need the same tokens.
--
--   job_ids      the jobs at hand, locked, in the order in which they are to start
--   started_ids  the jobs at hand that have started
--   groups       the groups that go on; no job of a group starts before its not_before
--   horizon      if the first denied job of a group can start by this time, the group goes on; otherwise it stops
--   results      one row for each group. admitted_ids: these jobs start, at starts_at. goes_on: the group has other jobs for the
--                next round, none of which starts before ready_at. stops: the job refused_id cannot start before ready_at.
--                slowest_item: the item that it waits for longest. pays: it is to pay for that item ahead, as of asked_at
CREATE OR REPLACE FUNCTION rate_limit._ask_to_start(
  job_ids bigint[], started_ids bigint[], groups rate_limit.groups[], clock bigint, horizon bigint, limit_names text[],
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[]
) RETURNS TABLE (
  job_group rate_limit.groups, admitted_ids bigint[], starts_at bigint, goes_on boolean, stops boolean, ready_at bigint,
  refused_id bigint, slowest_item integer, pays boolean, asked_at bigint
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_column
DECLARE
  keys CONSTANT text[] := ARRAY(SELECT g.key FROM unnest(groups) AS g); -- A join would compare each job with each group.
  asked_ids bigint[]; -- the jobs of all calls, one call after the other
  asked_calls integer[]; -- the index of the call of each of these jobs
  call_ats bigint[]; -- NULL: now
  has_others boolean[]; -- whether the group has jobs at hand that its call leaves out
  times_admitted integer[];
  call_waits bigint[];
  item_refused boolean[];
  item_values double precision[];
  decided_at bigint; -- The time at which tokens come is exact: all groups that wait for one are ready at the same time.
BEGIN
  WITH at_hand AS (
    SELECT
      u.nth, j.id, j.key, j.limit_names, j.limit_keys, j.counts, j.slot_names,
      greatest(j.run_at, _ask_to_start.clock, (groups[array_position(keys, j.key)]).not_before, j.paid_until) AS at
    FROM unnest((SELECT job_ids)) WITH ORDINALITY AS u (id, nth)
    JOIN rate_limit.jobs AS j ON j.id = u.id
    WHERE u.id <> ALL (started_ids) AND j.key = ANY (keys)
  ),
  runs AS (
    SELECT
      a.*,
      count(*) OVER (PARTITION BY a.key) AS jobs,
      bool_and(a.is_alike) OVER (PARTITION BY a.key ORDER BY a.nth) AS is_asked
    FROM (
      SELECT
        a.*,
        -- The job is the first of its group, or needs the same tokens as the job before it. (A call of several items can be
        -- made only once, and only the first job of a group has taken its slots.)
        lag(a.nth) OVER w IS NULL OR (
          cardinality(a.counts) = 1 AND a.slot_names IS NULL
          AND (a.at, a.limit_names, a.limit_keys, a.counts) = lag((a.at, a.limit_names, a.limit_keys, a.counts)) OVER w
        ) AS is_alike
      FROM at_hand AS a
      WINDOW w AS (PARTITION BY a.key ORDER BY a.nth)
    ) AS a
  ),
  calls AS (
    SELECT
      -- In the order of the jobs: if several share a bucket, the first one gets its tokens.
      row_number() OVER (ORDER BY min(r.nth))::integer AS nth,
      r.at, r.limit_names, r.limit_keys, r.counts, array_agg(r.id ORDER BY r.nth) AS ids, r.jobs > count(*) AS has_others
    FROM runs AS r
    WHERE r.is_asked
    GROUP BY r.key, r.jobs, r.at, r.limit_names, r.limit_keys, r.counts
  )
  SELECT a.ids, a.calls, c.ats, c.has_others, d.call_admitted, d.call_waits, d.item_refused, d.item_values, d.decided_at
  INTO asked_ids, asked_calls, call_ats, has_others, times_admitted, call_waits, item_refused, item_values, decided_at
  FROM (
    SELECT
      array_agg(cardinality(c.counts) ORDER BY c.nth) AS sizes,
      array_agg(cardinality(c.ids) ORDER BY c.nth) AS times,
      CASE WHEN max(c.at) > _ask_to_start.clock THEN array_agg(c.at ORDER BY c.nth) END AS ats,
      array_agg(c.has_others ORDER BY c.nth) AS has_others
    FROM calls AS c
    HAVING count(*) > 0
  ) AS c
  CROSS JOIN (
    SELECT array_agg(u.id ORDER BY c.nth, u.place) AS ids, array_agg(c.nth ORDER BY c.nth, u.place) AS calls
    FROM calls AS c
    CROSS JOIN LATERAL unnest(c.ids) WITH ORDINALITY AS u (id, place)
  ) AS a
  CROSS JOIN (
    SELECT
      array_agg(u.name ORDER BY c.nth, u.place) AS names,
      array_agg(u.key ORDER BY c.nth, u.place) AS keys,
      array_agg(u.count ORDER BY c.nth, u.place) AS counts,
      array_agg(array_position(_ask_to_start.limit_names, u.name) ORDER BY c.nth, u.place) AS limits
    FROM calls AS c
    CROSS JOIN LATERAL unnest(c.limit_names, c.limit_keys, c.counts) WITH ORDINALITY AS u (name, key, count, place)
  ) AS i
  CROSS JOIN LATERAL rate_limit._decide_started(
    i.names, i.keys, i.counts, i.limits, NULL, NULL, NULL, NULL, c.sizes, c.times, c.ats, limit_kinds, limit_rates,
    limit_periods, limit_capacities, limit_starts
  ) AS d;

  IF call_ats IS NOT NULL AND rate_limit._clock() - clock > 250000 THEN
    -- Another transaction locked a row for long, so the times in call_ats have passed.
    RAISE EXCEPTION 'could not claim jobs in time'
      USING ERRCODE = 'serialization_failure', HINT = 'Claim again.';
  END IF;

  RETURN QUERY
  SELECT
    a.job_group, a.ids[:a.admitted], a.at,
    CASE WHEN a.is_refused THEN a.ready_at <= horizon ELSE has_others[a.call] END,
    a.is_refused AND a.ready_at > horizon,
    CASE
      WHEN NOT a.is_refused THEN (a.job_group).not_before
      WHEN a.ready_at <= horizon THEN greatest(a.ready_at, a.at)
      ELSE a.ready_at
    END,
    a.id, s.item,
    -- It was denied before, as others take its tokens (and no job of its group that runs again), or another job has paid ahead.
    a.is_refused AND a.ready_at > horizon AND (a.id = (a.job_group).refused_job AND a.admitted = 0 OR s.is_indebted),
    greatest(call_ats[a.call], decided_at)
  FROM (
    SELECT
      c.call, c.ids, c.admitted, c.admitted < cardinality(c.ids) AS is_refused, j.id, j.limit_names, j.counts,
      groups[array_position(keys, j.key)] AS job_group,
      sum(cardinality(j.counts)) OVER (ORDER BY c.call) - cardinality(j.counts) AS items_before,
      -- A bucket's time may be ahead of the clock, because another claim took tokens as of a later time. Then use that time.
      greatest(
        j.run_at, _ask_to_start.clock, (groups[array_position(keys, j.key)]).not_before, j.paid_until, b.at) AS at,
      coalesce(call_ats[c.call], decided_at) + call_waits[c.call] AS ready_at
    FROM (
      SELECT c.call, array_agg(c.id ORDER BY c.place) AS ids, coalesce(times_admitted[c.call], count(*)) AS admitted
      FROM unnest((SELECT asked_ids), asked_calls) WITH ORDINALITY AS c (id, call, place)
      GROUP BY c.call
    ) AS c
    JOIN rate_limit.jobs AS j ON j.id = c.ids[least(c.admitted + 1, cardinality(c.ids))]
    CROSS JOIN LATERAL ( -- By a function: Citus cannot plan a join of these tables.
      SELECT max(((rate_limit._bucket_rows(i.name || '/started', i.key, 1, false, false))[1]).ts) AS at
      FROM unnest(j.limit_names, j.limit_keys) AS i (name, key)
    ) AS b
  ) AS a
  LEFT JOIN LATERAL (
    SELECT
      i.place::integer AS item,
      i.balance < - rate_limit._tolerance(
        coalesce(limit_capacities[i.nth_limit], limit_rates[i.nth_limit]), i.balance) AS is_indebted
    FROM (
      SELECT
        i.*, item_values[a.items_before + i.place] AS balance,
        array_position(_ask_to_start.limit_names, i.name) AS nth_limit
      FROM unnest(a.limit_names, a.counts) WITH ORDINALITY AS i (name, count, place)
      WHERE item_refused[a.items_before + i.place]
    ) AS i
    ORDER BY (i.count - i.balance) * limit_periods[i.nth_limit] / limit_rates[i.nth_limit] DESC, i.place
    LIMIT 1
  ) AS s ON a.is_refused
  ORDER BY a.call;
END
$function$;
