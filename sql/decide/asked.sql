-- Returns the valid buckets of a batch, each with its limit and the tokens that the batch needs from it. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._asked(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_resolutions integer[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  bucket_amounts double precision[]
) RETURNS TABLE (
  nth integer, name text, key text, amount double precision, kind text, rate double precision, period bigint,
  capacity double precision, phase bigint, resolution integer
) LANGUAGE sql STABLE
AS $function$
  SELECT a.nth, a.name, a.key, a.amount, a.kind, a.rate, a.period, a.capacity, a.phase, a.resolution
  FROM (
    SELECT
      u.nth::integer AS nth, u.name, u.key, u.amount, limit_kinds[l.nth] AS kind, limit_rates[l.nth] AS rate,
      limit_periods[l.nth] AS period, coalesce(limit_capacities[l.nth], limit_rates[l.nth]) AS capacity,
      rate_limit._grid(limit_kinds[l.nth], limit_starts[l.nth], limit_periods[l.nth], u.name, u.key) AS phase,
      coalesce(limit_resolutions[l.nth], 1) AS resolution
    -- The sub-select hides the number of buckets from the planner, which would otherwise make a new plan for each small number.
    FROM unnest((SELECT bucket_names), bucket_keys, bucket_limits, bucket_amounts)
      WITH ORDINALITY AS u (name, key, nth_limit, amount, nth)
    CROSS JOIN LATERAL (SELECT coalesce(u.nth_limit, 1) AS nth) AS l
    OFFSET 0 -- So that the planner does not compute an expression twice.
  ) AS a
  WHERE rate_limit._in_range(a.rate, a.period, a.capacity) AND a.resolution BETWEEN 1 AND 1000
    AND (a.amount = 0 OR rate_limit._is_exact(a.amount, a.capacity) AND a.amount <= a.capacity)
$function$;
