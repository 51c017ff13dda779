-- rate_limit_correct_started(text[], text[], double precision[], double precision[], bigint[], text[], text[], double precision[], bigint[], double precision[], bigint[])
-- SHA-256: 1b9d2fd2ff73c25899d0b20d371f383f04f81e879ae13a3ff18ba9599ab1ab3b

-- Corrects the buckets of what was started: charges what is above 0, gives back what is below. Limits that are not known are
-- left out. `counts` is what the jobs ask for, which tells the capacity that they are started under; `ats` stands for the clock.
CREATE OR REPLACE FUNCTION public.rate_limit_correct_started(
  names text[],
  bucket_keys text[],
  counts double precision[],
  amounts double precision[],
  ats bigint[],
  limit_names text[],
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_starts bigint[]
)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  all_kinds text[] := limit_kinds;
  all_rates double precision[] := limit_rates;
  all_periods bigint[] := limit_periods;
  all_capacities double precision[] := limit_capacities;
  all_starts bigint[] := limit_starts;
  nth_limit integer;
  limit_kind text;
  capacity double precision;
  full_capacity double precision;
  phase bigint;
  buckets text[] := '{}';
  nth_bucket integer;
  asked_names text[] := '{}';
  asked_keys text[] := '{}';
  item_buckets integer[] := '{}';
  item_limits integer[] := '{}';
  item_counts double precision[] := '{}';
  ops text[] := '{}';
  call_ats bigint[];
BEGIN
  FOR i IN 1 .. cardinality(names) LOOP
    CONTINUE WHEN names[i] <> ALL (limit_names);
    -- The limit that item i is started under, as nth_limit of all_*: of names[i] and bucket_keys[i], for counts[i].
    -- The bucket has to hold what one job asks for, and what one window grants, or some could never start on time.
    nth_limit := array_position(limit_names, names[i]);
    limit_kind := limit_kinds[nth_limit];
    capacity := coalesce(limit_capacities[nth_limit], limit_rates[nth_limit]);
    full_capacity := greatest(capacity, counts[i]);
    phase := limit_starts[nth_limit];
    IF limit_kind = 'fixed_window' THEN
      full_capacity := greatest(full_capacity, limit_rates[nth_limit]);
      IF phase IS NULL THEN -- That of the bucket that was reserved from, which has another name.
        phase := public.rate_limit_phase(names[i], bucket_keys[i]);
      END IF;
    END IF;
    IF full_capacity > capacity OR phase IS DISTINCT FROM limit_starts[nth_limit] THEN
      all_kinds := all_kinds || limit_kind;
      all_rates := all_rates || limit_rates[nth_limit];
      all_periods := all_periods || limit_periods[nth_limit];
      all_capacities := all_capacities || full_capacity;
      all_starts := all_starts || phase;
      nth_limit := cardinality(all_kinds);
    END IF;
    nth_bucket := array_position(buckets, length(names[i]) || ':' || names[i] || bucket_keys[i]);
    IF nth_bucket IS NULL THEN
      buckets := buckets || (length(names[i]) || ':' || names[i] || bucket_keys[i]);
      asked_names := asked_names || (names[i] || '/started');
      asked_keys := asked_keys || bucket_keys[i];
      nth_bucket := cardinality(buckets);
    END IF;
    item_buckets := item_buckets || nth_bucket;
    item_limits := item_limits || nth_limit;
    item_counts := item_counts || abs(amounts[i]);
    ops := ops || CASE WHEN amounts[i] > 0 THEN 'charge' ELSE 'credit' END;
    IF ats IS NOT NULL THEN
      call_ats := call_ats || ats[i];
    END IF;
  END LOOP;
  IF ops <> '{}' THEN
    PERFORM public.rate_limit_decide(
      all_kinds, all_rates, all_periods, all_capacities, NULL, all_starts, NULL, NULL, asked_names, asked_keys, item_buckets,
      item_limits, item_counts, ops, NULL, NULL, NULL, call_ats);
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_correct_started IS
  'Charges or credits the buckets that starts of jobs are counted in.';
