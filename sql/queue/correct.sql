-- Corrects the bucket that a job reserved from: charges an amount above 0, and returns an amount below 0. Does nothing if the
-- limit is not known.
CREATE OR REPLACE FUNCTION rate_limit._correct(
  name text, key text, amount double precision, limit_names text[], limit_kinds text[], limit_rates double precision[],
  limit_periods bigint[], limit_capacities double precision[], limit_starts bigint[], limit_shards integer[]
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  nth CONSTANT integer := array_position(limit_names, name);
BEGIN
  IF nth IS NOT NULL AND amount <> 0 THEN
    PERFORM rate_limit._decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, NULL, limit_starts,
      NULL, limit_shards, ARRAY[name], ARRAY[key], NULL, ARRAY[nth], ARRAY[abs(amount)],
      ARRAY[CASE WHEN amount > 0 THEN 'charge' ELSE 'credit' END], NULL, NULL, NULL, NULL);
  END IF;
END
$function$;
