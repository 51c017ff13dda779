public.rate_limit_asked(
  limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_shards, bucket_names, bucket_keys,
  item_limits, item_counts, call_reserves, call_times, chosen_shards, first_short_name, first_short_key)
