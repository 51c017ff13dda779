-- One of the `shards` rows, and how much further another one is.
floor(random() * shards)::integer AS first,
1 + floor(random() * (shards - 1))::integer AS step
