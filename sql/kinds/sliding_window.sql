-- sliding_window: at most `rate` in any `period`, counted in `resolution` sub-intervals. The current one and those
-- before it count whole; the one that is just leaving counts for the part of it that is still inside:
--   used = c[0] + .. + c[n-1] + c[n] * (1 - fraction of the current sub-interval gone by)
-- `value` is c[0]; `earlier_counts` is what the limit was (period, start, rate), then c[1] to c[n]. With n = 1 that is the two-counter
-- form.
-- Source: Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017 (two counters);
-- sub-intervals as in ClassDojo's sliding counters.

--@ declare
sub_interval bigint; -- the number, on the grid, of the sub-interval that holds `now`
gone double precision; -- the fraction of it that is gone by

--@ fresh: the state of a bucket without a row, at `now`
bucket.value := 0;
bucket.ts := now;
bucket.earlier_counts := NULL;

--@ advance: from `bucket.ts` to `now`; sets `balance`
DECLARE
  phase CONSTANT bigint := coalesce(limit_starts[limit_in_hand] % period, 0);
  -- Microseconds gone of the period that holds `ts`, `now`. Twice %: the remainder of a negative number is negative.
  inside_before CONSTANT bigint := ((bucket.ts - phase) % period + period) % period;
  inside CONSTANT bigint := ((now - phase) % period + period) % period;
  counts double precision[] := bucket.earlier_counts[4:]; -- c[1] to c[n]
  steps bigint;
  used double precision;
BEGIN
  IF bucket.earlier_counts IS NULL THEN
    IF present THEN -- The row was another kind's: what is missing from it is used.
      bucket.value := greatest(rate - bucket.value, 0);
    END IF;
    counts := array_fill(0::double precision, ARRAY[resolution]);
  ELSIF cardinality(counts) <> resolution
    OR bucket.earlier_counts[1] <> period
    OR bucket.earlier_counts[2] <> phase
  THEN -- The grid has changed: all counts move to the newest sub-interval, so that none leaves too soon.
    FOREACH part IN ARRAY counts LOOP
      bucket.value := bucket.value + part;
    END LOOP;
    counts := array_fill(0::double precision, ARRAY[resolution]);
  END IF;
  sub_interval := (now - phase - inside) / period * resolution + inside * resolution / period;
  steps := least(
    sub_interval - (bucket.ts - phase - inside_before) / period * resolution - inside_before * resolution / period,
    resolution + 1);
  WHILE steps > 0 LOOP
    counts := bucket.value || counts[1 : resolution - 1];
    bucket.value := 0;
    steps := steps - 1;
  END LOOP;
  bucket.ts := now;
  bucket.earlier_counts := ARRAY[period, phase, rate]::double precision[] || counts;
  gone := (inside * resolution % period)::double precision / period;
  used := bucket.value + counts[resolution] * (1 - gone);
  FOR i IN 1 .. resolution - 1 LOOP
    used := used + counts[i];
  END LOOP;
  balance := rate - used;
END;

--@ take: `count` tokens
bucket.value := bucket.value + count;

--@ credit: `count` tokens come back, from the newest counts
DECLARE
  counts double precision[] := bucket.earlier_counts;
  back double precision := least(count, bucket.value);
  rest double precision := count - back;
BEGIN
  bucket.value := bucket.value - back;
  FOR i IN 1 .. resolution LOOP
    EXIT WHEN rest <= 0;
    back := least(rest, counts[i + 3]);
    counts[i + 3] := counts[i + 3] - back;
    rest := rest - back;
  END LOOP;
  bucket.earlier_counts := counts;
END;

--@ idle: when all counts have left
DECLARE
  newest integer := 0; -- the newest sub-interval with a count
  left_at bigint; -- the number of the sub-interval at whose start it has left
  part_of bigint; -- the place of that one in its period
BEGIN
  bucket.idle_at := bucket.ts;
  IF bucket.value = 0 THEN
    newest := NULL;
    FOR i IN 1 .. resolution LOOP
      IF bucket.earlier_counts[i + 3] <> 0 THEN
        newest := i;
        EXIT;
      END IF;
    END LOOP;
  END IF;
  IF newest IS NOT NULL THEN
    left_at := sub_interval - newest + resolution + 1;
    part_of := (left_at % resolution + resolution) % resolution;
    -- Whole periods and parts apart, or the product would not fit; parts rounded up.
    bucket.idle_at := bucket.earlier_counts[2]::bigint + (left_at - part_of) / resolution * period
      + (part_of * period + resolution - 1) / resolution;
  END IF;
END;

--@ wait: microseconds from `now` until the balance has grown by `missing`
DECLARE
  room CONSTANT double precision := rate - balance - missing; -- what may be used then
  whole double precision := bucket.value; -- what counts whole in the sub-interval looked at
  counts CONSTANT double precision[] := bucket.earlier_counts[4:];
  leaving double precision;
BEGIN
  FOR i IN 1 .. resolution - 1 LOOP
    whole := whole + counts[i];
  END LOOP;
  -- In the sub-interval j steps ahead, c[n-j] is the one that leaves.
  FOR j IN 0 .. resolution LOOP
    leaving := CASE WHEN j < resolution THEN counts[resolution - j] ELSE bucket.value END;
    IF j = resolution THEN
      whole := 0;
    END IF;
    IF whole <= room + tolerance THEN
      IF leaving > 0 THEN
        wait := (j + greatest(least(1 - (room - whole) / leaving, 1), 0) - gone) * period / resolution;
        wait := ceil(wait - least(0.001, tolerance / 2 * period / resolution / leaving));
      ELSE
        wait := ceil((j - gone) * period / resolution - 0.001);
      END IF;
      EXIT;
    END IF;
    IF j + 1 < resolution THEN
      whole := whole - counts[resolution - j - 1];
    ELSE
      whole := 0;
    END IF;
  END LOOP;
END;

--@ validate: sets `reason` if an option does not apply
IF capacity IS NOT NULL OR max_reserved IS NOT NULL THEN
  reason := 'capacity and max_reserved do not apply to a sliding window';
END IF;

--@ reserve: refuses, where the kind cannot
RAISE EXCEPTION 'reserve_unsupported: the sliding window "%" cannot reserve', bucket_names[in_hand]
  USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a token bucket or a fixed window.';
