-- Corrects the buckets in which starts of jobs are counted: charges amounts above 0, and returns amounts below 0. Items of
-- unknown limits are left out. `counts` are the counts of the jobs; `ats` replaces the clock, unless NULL.
CREATE OR REPLACE FUNCTION rate_limit._correct_started(
  names text[], bucket_keys text[], counts double precision[], amounts double precision[], ats bigint[], limit_names text[],
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  PERFORM rate_limit._decide_started(
    array_agg(i.name ORDER BY i.nth), array_agg(i.key ORDER BY i.nth), array_agg(i.count ORDER BY i.nth),
    array_agg(i.nth_limit ORDER BY i.nth), array_agg(abs(i.amount) ORDER BY i.nth), NULL,
    array_agg(CASE WHEN i.amount > 0 THEN 'charge' ELSE 'credit' END ORDER BY i.nth), NULL,
    array_agg(1 ORDER BY i.nth), NULL, CASE WHEN ats IS NOT NULL THEN array_agg(i.at ORDER BY i.nth) END,
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts)
  FROM (
    SELECT u.*, array_position(limit_names, u.name) AS nth_limit
    FROM unnest(names, bucket_keys, counts, amounts, ats) WITH ORDINALITY AS u (name, key, count, amount, at, nth)
  ) AS i
  WHERE i.nth_limit IS NOT NULL
  HAVING count(*) > 0;
END
$function$;
