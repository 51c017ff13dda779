-- rate_limit_fits(text, double precision[], bigint, bigint, integer)
-- SHA-256: 6b6080886a3fd9ed1d978ed4dd3a89f573cc10a2e2fb35e52b628d6180dc82ad

-- Returns whether the row has this kind and grid of windows, so that the expressions below apply to it.
CREATE OR REPLACE FUNCTION public.rate_limit_fits(
  kind text, earlier_counts double precision[], period bigint, phase bigint, resolution integer
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN kind = 'sliding_window'
    THEN coalesce(
      earlier_counts[1] = period AND earlier_counts[2] = phase AND pg_catalog.cardinality(earlier_counts) = resolution + 3, false)
    ELSE earlier_counts IS NULL
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_fits IS 'Returns whether a row has this kind and grid of windows; inlined.';
