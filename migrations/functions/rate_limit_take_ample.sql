-- rate_limit_take_ample(text[], double precision[], bigint[], double precision[], bigint[], integer[], text[], text[], integer[], double precision[])
-- SHA-256: 336fc432765087a4101471745e623a15463b70f35adb4b78f52cf76a63a09374

-- Takes what a batch asks of its buckets in all, if every bucket covers it: then order does not matter, and no call has to be
-- looked at. The buckets are listed in the global order.
--
--   is_done      all of it was taken, and as of a moment that has just passed
--   balances     of each bucket after that
--   rows_before  of the rows that were written, as they were before
CREATE OR REPLACE FUNCTION public.rate_limit_take_ample(
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  bucket_names text[],
  bucket_keys text[],
  bucket_limits integer[],
  bucket_amounts double precision[],
  OUT is_done boolean,
  OUT balances double precision[],
  OUT rows_before public.rate_limits[]
)
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  now bigint;
  is_ample boolean;
  before public.rate_limits[];
  after public.rate_limits[];
  written integer[];
BEGIN
  -- A session's first look takes long: then it looks again, because what was read has to be of this moment.
  FOR look IN 1 .. 2 LOOP
    now := public.rate_limit_clock();
    SELECT
      bool_and(a.is_ample),
      array_agg(a.bucket ORDER BY a.nth),
      array_agg(a.after ORDER BY a.nth),
      array_agg(a.remaining ORDER BY a.nth)
    INTO is_ample, before, after, balances
    FROM public.rate_limit_asked_rows(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
      bucket_limits, bucket_amounts, now) AS a;
    EXIT WHEN public.rate_limit_clock() - now <= 2000 + 50 * cardinality(bucket_names);
  END LOOP;
  is_done := false;
  IF is_ample THEN
    written := public.rate_limit_write_all(before, after);
    is_done := coalesce(cardinality(written) = cardinality(before), false)
      AND public.rate_limit_clock() - now <= 2000 + 50 * cardinality(before);
    IF written <> '{}' AND NOT is_done THEN
      rows_before := ARRAY(
        SELECT CASE WHEN nth = ANY (written) THEN before[nth] END FROM generate_series(1, cardinality(before)) AS nth ORDER BY nth);
    END IF;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_ample IS 'Takes what a batch asks, if every bucket covers it.';
