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
