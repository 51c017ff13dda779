-- Gives back what these waiting jobs of a group have reserved, and reserves it again, in this order: for the first `most` of
-- them. The caller has locked these, and the rows of all buckets. Returns the earliest new time; NULL: no job has moved.
--
-- Jobs of the same limits and keys keep their order. In one call of _decide, the group's jobs give back the tokens that they
-- have reserved, and reserve them again, the oldest job first, so the buckets end as they were. If others have reserved from
-- the buckets, these could be ahead of the jobs or behind them. Then a job's time may only become earlier, and never by what
-- others have reserved. So it is if there are more than `most` jobs: the others move in later transactions, and newer jobs must
-- not be before older ones meanwhile.
CREATE OR REPLACE FUNCTION rate_limit._reserve_again(
  ids bigint[], most integer, limit_names text[], limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
#variable_conflict use_variable
DECLARE
  has_rest CONSTANT boolean := cardinality(ids) > most;
  names text[];
  keys text[];
  limits integer[]; -- the limit of each bucket
  buckets integer[];
  totals double precision[]; -- what all of these jobs have reserved from each bucket
  rests double precision[]; -- and what those have that come after the first ones
  nothing double precision[];
  job_buckets integer[];
  job_counts double precision[];
  takes integer;
  decided record;
  is_alone boolean; -- only these jobs have reserved from the buckets
  first_at bigint;
BEGIN
  SELECT
    array_agg(t.name ORDER BY t.nth), array_agg(t.key ORDER BY t.nth), array_agg(t.total ORDER BY t.nth),
    array_agg(t.rest ORDER BY t.nth), array_agg(array_position(limit_names, t.name) ORDER BY t.nth)
  INTO names, keys, totals, rests, limits
  FROM (
    SELECT
      u.name, u.key, sum(u.count) AS total, coalesce(sum(u.count) FILTER (WHERE i.nth > most), 0) AS rest,
      row_number() OVER (ORDER BY u.name COLLATE "C", u.key COLLATE "C") AS nth
    FROM unnest((SELECT ids)) WITH ORDINALITY AS i (id, nth)
    JOIN rate_limit.jobs AS j ON j.id = i.id
    CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) AS u (name, key, count)
    GROUP BY u.name, u.key
  ) AS t;
  IF EXISTS (
    SELECT
    FROM unnest(limits, totals) AS l (i, total)
    WHERE coalesce(limit_capacities[l.i], limit_rates[l.i]) + l.total > 1e13
  )
  THEN
    RETURN NULL; -- The balance with all tokens given back would be rounded: they keep their times.
  END IF;
  ids := ids[:most];
  SELECT array_agg(n.nth::integer ORDER BY i.nth, u.place), array_agg(u.count ORDER BY i.nth, u.place)
  INTO job_buckets, job_counts
  FROM unnest((SELECT ids)) WITH ORDINALITY AS i (id, nth)
  JOIN rate_limit.jobs AS j ON j.id = i.id
  CROSS JOIN LATERAL unnest(j.limit_names, j.limit_keys, j.counts) WITH ORDINALITY AS u (name, key, count, place)
  JOIN unnest((SELECT names), keys) WITH ORDINALITY AS n (name, key, nth) ON n.name = u.name AND n.key = u.key;
  buckets := ARRAY(SELECT generate_series(1, cardinality(names)));
  nothing := array_fill(0.0::double precision, ARRAY[cardinality(names)]);
  takes := cardinality(ids) + has_rest::integer;
  -- Jobs can have reserved more than the capacity. So each bucket has a second limit, with as much room; the calls with the first
  -- one, before and after, take and return nothing, and bring the bucket up to date.
  decided := rate_limit._decide(
    limit_kinds || ARRAY(SELECT limit_kinds[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
    limit_rates || ARRAY(SELECT limit_rates[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
    limit_periods || ARRAY(SELECT limit_periods[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
    limit_capacities || ARRAY(
      SELECT coalesce(limit_capacities[l.i], limit_rates[l.i]) + totals[l.nth]
      FROM unnest(limits) WITH ORDINALITY AS l (i, nth)
      ORDER BY l.nth),
    NULL,
    limit_starts || ARRAY(SELECT limit_starts[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
    NULL,
    limit_shards || ARRAY(SELECT limit_shards[l.i] FROM unnest(limits) WITH ORDINALITY AS l (i, nth) ORDER BY l.nth),
    names, keys, buckets || buckets || job_buckets || CASE WHEN has_rest THEN buckets END || buckets,
    limits || ARRAY(
      SELECT cardinality(limit_names) + u.bucket
      FROM unnest(buckets || job_buckets || CASE WHEN has_rest THEN buckets END) WITH ORDINALITY AS u (bucket, nth)
      ORDER BY u.nth) || limits,
    nothing || totals || job_counts || CASE WHEN has_rest THEN rests END || nothing,
    ARRAY['credit', 'credit'] || array_fill('limit'::text, ARRAY[takes]) || ARRAY['credit'],
    ARRAY[false, false] || array_fill(true, ARRAY[takes]) || ARRAY[false],
    array_fill(cardinality(names), ARRAY[2]) || ARRAY(
      SELECT cardinality(j.counts)
      FROM unnest((SELECT ids)) WITH ORDINALITY AS i (id, nth)
      JOIN rate_limit.jobs AS j ON j.id = i.id
      ORDER BY i.nth) || array_fill(cardinality(names), ARRAY[1 + has_rest::integer]),
    NULL, NULL);
  is_alone := NOT has_rest AND -1e-6 <= ALL (decided.item_values[cardinality(names) + 1:2 * cardinality(names)]);
  WITH timed AS (
    SELECT
      j.id, j.run_at,
      max(
        CASE
          WHEN is_alone THEN decided.decided_at + coalesce(w.wait, 0)
          ELSE least(j.run_at, decided.decided_at + coalesce(w.wait, 0))
        END) OVER (PARTITION BY j.limit_names, j.limit_keys ORDER BY j.id) AS new_run_at
    FROM unnest((SELECT ids), decided.call_waits[3:cardinality(ids) + 2]) AS w (id, wait)
    JOIN rate_limit.jobs AS j ON j.id = w.id
  ),
  moved AS (
    UPDATE rate_limit.jobs AS j
    SET run_at = t.new_run_at
    FROM timed AS t
    WHERE j.id = t.id AND EXISTS (
      SELECT
      FROM timed AS o
      WHERE abs(o.new_run_at - o.run_at) > 1000 -- Otherwise only the clock's readings differ.
    )
    RETURNING j.run_at
  )
  SELECT min(m.run_at) INTO first_at FROM moved AS m;
  RETURN first_at;
END
$function$;
COMMENT ON FUNCTION rate_limit._reserve_again IS 'Computes anew when these jobs start.';
