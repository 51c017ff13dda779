-- How many shards each bucket is to have, and two of them.
FOR item IN 1 .. items LOOP
  b := CASE WHEN item_buckets IS NULL THEN item ELSE item_buckets[item] END;
  parts := limit_shards[CASE WHEN item_limits IS NULL THEN 1 ELSE item_limits[item] END];
  IF NOT coalesce(b BETWEEN 1 AND buckets AND coalesce(parts, 1) BETWEEN 1 AND 1000, false) THEN
    --@include not_valid
  END IF;
  CONTINUE WHEN coalesce(parts, 1) = 1;
  bucket_shards[b] := parts;
  first_shards[b] := floor(random() * parts);
  second_shards[b] := (first_shards[b] + 1 + floor(random() * (parts - 1))::integer) % parts;
END LOOP;
