-- Decides a batch of calls like rate_limit_decide_sums, without credits. Clients of earlier releases call it.
CREATE OR REPLACE FUNCTION public.rate_limit_take_ample(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_starts bigint[], limit_resolutions integer[], bucket_names text[], bucket_keys text[], bucket_limits integer[],
  bucket_amounts double precision[], item_buckets integer[], item_counts double precision[], call_sizes integer[]
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off
AS $function$
BEGIN
  RETURN public.rate_limit_decide_sums(
    limit_kinds, limit_rates, limit_periods, limit_capacities, limit_starts, limit_resolutions, bucket_names, bucket_keys,
    bucket_limits, bucket_amounts, NULL, item_buckets, item_counts, call_sizes);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_take_ample IS
  'Takes the tokens of a batch of calls; called by clients of earlier releases.';
