-- Decides calls row by row. It reads the rows without locking them, decides, and writes each row that changes, if no other
-- transaction has changed the row since. So a denial locks nothing and writes nothing. Arguments and results are those of
-- _decide, and decided_at: the time as of which it decided, unless call_ats gives one. The caller, _decide or _decide_started,
-- has checked them, and lists the buckets in the global order. `amounts` are the tokens that calls take from each bucket or leave
-- in it; NULL for a bucket of which the whole balance is needed.
--
-- Under REPEATABLE READ and SERIALIZABLE the write of a changed row fails (40001). Under READ COMMITTED the write matches no
-- row. Then this function locks that row and all later rows to be written, and decides the allowed calls again.
--
-- To avoid deadlocks, all transactions lock rows in one order: new rows first, then existing ones, each by (name, key, shard)
-- in bytes. A transaction that has locked existing rows waits for no row that it did not find before, and inserts no new rows,
-- except further shards of a bucket if it has locked the bucket's shard 0. An error is never caught: after a caught 40001 the
-- transaction could commit a decision based on a stale row.
CREATE OR REPLACE FUNCTION rate_limit._decide_each(
  limit_kinds text[], limit_rates double precision[], limit_periods bigint[], limit_capacities double precision[],
  limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[], limit_shards integer[],
  bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[], item_counts double precision[],
  call_ops text[], call_reserves boolean[], call_sizes integer[], call_times integer[], call_ats bigint[], call_leases bigint[],
  holds_rows boolean, amounts double precision[], OUT call_admitted integer[], OUT call_waits bigint[],
  OUT item_refused boolean[], OUT item_values double precision[], OUT decided_at bigint
) LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  buckets CONSTANT integer := cardinality(bucket_names);
  before rate_limit.rate_limits[] := array_fill(CAST(NULL AS rate_limit.rate_limits), ARRAY[buckets]);
  is_written boolean[] := array_fill(false, ARRAY[buckets]); -- the row in the table differs from `before`
  is_locked boolean[] := is_written;
  was_locked boolean[]; -- `is_locked` when the calls were decided
  parts integer[]; -- the number of rows of the bucket, if `before` is one of them
  beyond double precision[]; -- the estimated tokens in the bucket's other rows
  shares rate_limit.rate_limits[]; -- the rows that were gathered into `before`, for all sharded buckets
  first_shares integer[];
  last_shares integer[];
  limits integer[] := array_fill(1, ARRAY[buckets]); -- a limit of each bucket
  locks boolean := false; -- lock rows when reading them
  is_read boolean[] := array_fill(false, ARRAY[buckets]);
  looked record;
  decided record;
  after rate_limit.rate_limits[];
  changed boolean[];
  bucket rate_limit.rate_limits;
  is_in_doubt boolean; -- another transaction has changed a row
BEGIN
  FOR item IN 1 .. coalesce(cardinality(item_limits), 0) LOOP
    limits[CASE WHEN item_buckets IS NULL THEN item ELSE item_buckets[item] END] := item_limits[item];
  END LOOP;
  LOOP
    -- Rows that are only read are read last: a gate may have been blocked while this waited for a lock.
    FOR only_read IN 0 .. 1 LOOP
      FOR b IN 1 .. buckets LOOP
        CONTINUE WHEN is_read[b] OR (only_read = 0) = (locks AND NOT changed[b]);
        looked := rate_limit._find(
          bucket_names[b], bucket_keys[b], limit_kinds[limits[b]], limit_rates[limits[b]], limit_periods[limits[b]],
          coalesce(limit_capacities[limits[b]], limit_rates[limits[b]]), limit_starts[limits[b]],
          coalesce(limit_resolutions[limits[b]], 1), coalesce(limit_shards[limits[b]], 1), amounts[b], call_ats[1],
          CASE WHEN parts[b] > 1 THEN (before[b]).shard END, (locks AND only_read = 0) OR is_locked[b],
          NOT (holds_rows OR is_locked[b]));
        before[b] := looked.bucket;
        parts[b] := looked.parts;
        beyond[b] := looked.beyond;
        first_shares[b] := CASE WHEN looked.shares IS NOT NULL THEN coalesce(cardinality(shares), 0) + 1 END;
        shares := shares || looked.shares;
        last_shares[b] := cardinality(shares);
        is_read[b] := true;
        is_locked[b] := is_locked[b] OR (locks AND only_read = 0 AND (before[b]).ts IS NOT NULL);
      END LOOP;
    END LOOP;

    -- Read the clock after locking: a call that waited must not decide as of the time at which it began to wait. The first
    -- decision of a session is slow, and is repeated.
    FOR try IN 1 .. 2 LOOP
      decided_at := rate_limit._clock();
      decided := rate_limit._decide_rows(
        limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions, before,
        parts, item_buckets, item_limits, item_counts, call_ops, call_reserves, call_sizes, call_times, call_ats, call_leases,
        decided_at, call_admitted, call_waits, item_refused, item_values);
      EXIT WHEN rate_limit._clock() - decided_at <= rate_limit._late_after(buckets);
    END LOOP;
    FOR item IN 1 .. CASE WHEN amounts IS NULL THEN 0 ELSE cardinality(decided.item_values) END LOOP
      IF parts[coalesce(item_buckets[item], item)] > 1
        AND (decided.item_refused[item] OR decided.item_values[item] < -1e-9)
      THEN -- One row can allow a call, but denying it needs all rows.
        is_read[coalesce(item_buckets[item], item)] := false;
        amounts[coalesce(item_buckets[item], item)] := NULL;
        parts[coalesce(item_buckets[item], item)] := NULL;
      END IF;
    END LOOP;
    CONTINUE WHEN false = ANY (is_read);
    after := decided.buckets;
    changed := decided.changed;
    call_admitted := decided.call_admitted;
    call_waits := decided.call_waits;
    item_refused := decided.item_refused;
    item_values := decided.item_values;
    was_locked := is_locked;
    is_in_doubt := false;
    FOR b IN 1 .. buckets LOOP
      changed[b] := coalesce(changed[b], false) AND ((before[b]).ts IS NOT NULL OR (after[b]).ts IS NOT NULL);
      CONTINUE WHEN NOT changed[b] OR is_locked[b] OR NOT (holds_rows OR (locks AND true = ANY (was_locked)));
      -- Rows are locked that may come later in the order. The row of this bucket was deleted, or was missing before.
      IF (before[b]).ts IS NULL OR (rate_limit._held(ARRAY[bucket_names[b]], ARRAY[bucket_keys[b]]))[1] THEN
        RAISE EXCEPTION 'could not serialize access to a bucket'
          USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
      END IF;
    END LOOP;
    -- Insert new rows before locking existing ones.
    FOR b IN 1 .. buckets LOOP
      CONTINUE WHEN NOT changed[b] OR is_locked[b] OR (before[b]).ts IS NOT NULL;
      bucket := after[b];
      INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at, detail)
      VALUES (bucket.name, bucket.key, 0, bucket.shards, bucket.value, bucket.ts, bucket.idle_at, bucket.detail)
      ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
      is_locked[b] := FOUND;
      is_written[b] := FOUND;
      is_in_doubt := is_in_doubt OR NOT FOUND;
      IF FOUND AND first_shares[b] IS NOT NULL THEN
        shares := shares || bucket;
        last_shares[b] := cardinality(shares);
        first_shares[b] := last_shares[b];
      END IF;
    END LOOP;

    -- Write existing rows, unless they have changed since.
    FOR b IN 1 .. buckets LOOP
      EXIT WHEN is_in_doubt;
      CONTINUE WHEN NOT changed[b] OR is_locked[b];
      is_locked[b] := first_shares[b] IS NULL AND rate_limit._write(before[b], after[b], true);
      is_written[b] := is_locked[b];
      is_in_doubt := NOT is_locked[b];
    END LOOP;
    -- If the writes were slow, another transaction may have locked a row without changing it. A decision as of a time before that
    -- wait would count the refill since then twice, so it is made again. All rows are locked now.
    EXIT WHEN NOT is_in_doubt AND (
      call_ats IS NOT NULL OR was_locked IS NOT DISTINCT FROM is_locked
        OR rate_limit._clock() - decided_at <= rate_limit._late_after(buckets));
    -- Rows that are only read are read again, too.
    locks := true;
    is_read := is_locked;
    IF false = ANY (changed) AND call_ats IS NULL THEN
      PERFORM rate_limit._needs_fresh_reads(rate_limit._clock() - decided_at);
    END IF;
  END LOOP;
  -- Write the rows that were already locked when the calls were decided, and the other rows of a new sharded bucket.
  FOR b IN 1 .. buckets LOOP
    CONTINUE WHEN NOT (was_locked[b] OR (is_written[b] AND first_shares[b] IS NOT NULL)) OR NOT (changed[b] OR is_written[b]);
    bucket := CASE WHEN changed[b] THEN after[b] ELSE before[b] END;
    IF first_shares[b] IS NOT NULL THEN
      PERFORM rate_limit._spread(
        shares[first_shares[b] : last_shares[b]], CASE WHEN NOT is_written[b] THEN before[b] END, bucket, limit_kinds[limits[b]],
        limit_rates[limits[b]], limit_periods[limits[b]], coalesce(limit_capacities[limits[b]], limit_rates[limits[b]]),
        limit_starts[limits[b]], coalesce(limit_resolutions[limits[b]], 1));
    ELSE
      PERFORM rate_limit._write(bucket, bucket, false);
    END IF;
  END LOOP;
  FOR item IN 1 .. CASE WHEN amounts IS NULL THEN 0 ELSE cardinality(item_values) END LOOP
    item_values[item] := item_values[item] + coalesce(beyond[coalesce(item_buckets[item], item)], 0);
  END LOOP;
END
$function$;
