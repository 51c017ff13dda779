-- Takes the bucket up and brings it to the moment.
in_hand := item_buckets[item];
limit_in_hand := item_limits[item];
moment := at;
--@include config
-- What would spoil a row is caught here, whoever calls; which option suits which kind, by those who do.
IF NOT coalesce(
  rate BETWEEN 1e-100 AND 1e100 AND period BETWEEN 1 AND 3155760000000000
    AND capacity BETWEEN 0 AND 1e100 AND coalesce(limit_max_reserved[limit_in_hand] BETWEEN 0 AND 1e100, true)
    AND resolution BETWEEN 1 AND 1000 AND coalesce(limit_shards[limit_in_hand], 1) BETWEEN 1 AND 1000
    AND bucket_names[in_hand] IS NOT NULL AND bucket_keys[in_hand] IS NOT NULL,
  false)
THEN
  --@include not_valid
END IF;
present := row_present[in_hand];
bucket := rows[in_hand];
now := CASE WHEN present THEN greatest(moment, bucket.ts) ELSE moment END;
looks := 1;
parts := 1;
pairs := false;
gathers := false;
IF bucket_shards IS NOT NULL OR looks_at_all IS NOT NULL OR bucket.shards <> 1 THEN
  --@include look
END IF;
FOR nth_look IN 1 .. looks LOOP
  IF parts > 1 OR gathers THEN
    --@include as_read
  ELSIF NOT present THEN
    bucket.name := bucket_names[in_hand];
    bucket.key := bucket_keys[in_hand];
    bucket.shard := 0;
    bucket.shards := coalesce(bucket_shards[in_hand], 1);
    --@kinds fresh
  END IF;
  balance := NULL;
  --@kinds advance
  IF balance IS NULL THEN
    RAISE EXCEPTION 'item % has a limit of unknown kind', item
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Call rate_limit_validate.';
  END IF;
  IF parts > 1 OR gathers THEN
    --@include as_of_now
  END IF;
END LOOP;
IF pairs THEN
  --@include choose
ELSIF gathers THEN
  --@include gather
END IF;
tolerance := 1e-9 + 1e-14 * greatest(capacity, abs(balance));

--@ part look: at which rows of the bucket
IF share_counts[in_hand] IS NULL THEN
  IF bucket_shards[in_hand] > 1 THEN -- At the two drawn, or at the one chosen of them.
    parts := bucket_shards[in_hand];
    pairs := is_gathered[in_hand] IS NOT TRUE;
    IF NOT coalesce(
      present AND bucket.shards = parts AND limit_shards[limit_in_hand] = parts
        AND (op = 'limit' OR op = 'charge' OR (op = 'check' AND count > 0))
        AND (NOT pairs OR (others[in_hand]).shards = parts),
      false)
    THEN
      --@include widen
    END IF;
    IF pairs THEN
      looks := 2;
      now := greatest(now, (others[in_hand]).ts);
    END IF;
  ELSIF bucket.shards <> 1 THEN
    --@include widen
  END IF;
ELSIF share_counts[in_hand] > 0 AND is_gathered[in_hand] IS NOT TRUE THEN -- At all.
  gathers := true;
  looks := share_counts[in_hand];
  parts := (shares[first_shares[in_hand]]).shards;
  FOR i IN 1 .. looks LOOP
    now := greatest(now, (shares[first_shares[in_hand] + i - 1]).ts);
  END LOOP;
  may_drain[in_hand] := looks = parts AND looks = coalesce(bucket_shards[in_hand], 1);
END IF;
rate := rate / parts;
capacity := capacity / parts;

--@ part as_read: one of several rows
IF gathers THEN
  bucket := shares[first_shares[in_hand] + nth_look - 1];
ELSIF nth_look = 2 THEN
  bucket := others[in_hand];
END IF;
header := bucket.earlier_counts[1:3];
lack := CASE WHEN bucket.earlier_counts IS NULL THEN capacity - least(bucket.value, capacity) END;

--@ part as_of_now: the same row, brought there
IF NOT gathers AND bucket.earlier_counts[1:3] IS DISTINCT FROM header THEN -- Another limit's: it may owe what others do not.
  --@include widen
END IF;
IF pairs THEN
  IF nth_look = 1 THEN
    kept := bucket;
    kept_balance := balance;
  END IF;
ELSIF gathers THEN
  IF bucket.earlier_counts[1:3] IS DISTINCT FROM header OR balance < - (1e-9 + 1e-14 * capacity) THEN
    may_drain[in_hand] := false;
  END IF;
  share_balances[first_shares[in_hand] + nth_look - 1] := balance;
  look_lacks[nth_look] := coalesce(lack, capacity - balance);
  look_inflows[nth_look] := CASE WHEN lack IS NULL THEN 0 ELSE inflow END;
  IF nth_look = 1 THEN
    kept := bucket;
    sums := bucket.earlier_counts[4:];
  ELSE
    kept.value := kept.value + bucket.value;
    kept.ts := greatest(kept.ts, bucket.ts);
    FOR i IN 1 .. coalesce(cardinality(sums), 0) LOOP
      sums[i] := sums[i] + bucket.earlier_counts[i + 3];
    END LOOP;
  END IF;
END IF;

--@ part choose: the fuller one of two
IF coalesce(
  kept.shard = chosen_shards[in_hand],
  kept_balance >= balance OR (prefers_first[in_hand] AND kept_balance >= count * times)
)
THEN
  beyond_rows[in_hand] := (kept_balance + balance) * parts / 2 - kept_balance;
  bucket := kept;
  balance := kept_balance;
ELSE
  beyond_rows[in_hand] := (kept_balance + balance) * parts / 2 - balance;
END IF;
chosen_shards[in_hand] := bucket.shard;
rows[in_hand] := bucket;
is_gathered[in_hand] := true;

--@ part gather: all rows into one
-- It has more than all of them where one row was full and what flowed in was lost, while others were not: one bucket of
-- the whole rate would have got it. How much that one lacks: a row that lacks w at a moment s was asked, since any moment
-- before, for at most w and what flowed into it since then. So, seen from each of these moments, the bucket lacks at most
--   the sum of this over the rows that were written then or later, less what has flowed into the whole since then,
-- and it lacks the largest of these differences, or nothing. That is what a queue holds (E. Reich, "On the
-- integrodifferential equation of Takacs", 1958). All of them shrink at the whole rate.
--@include config
total := (
  SELECT sum(u.balance)
  FROM unnest(share_balances[first_shares[in_hand] : first_shares[in_hand] + looks - 1]) AS u (balance)
);
bucket := kept;
bucket.shard := 0;
bucket.shards := coalesce(bucket_shards[in_hand], 1);
IF sums IS NULL THEN
  SELECT capacity - greatest(max(g.lacks + g.inflow * (g.rows - parts)), 0)
  INTO balance
  FROM (
    SELECT
      f.inflow,
      sum(f.lack - f.inflow) OVER written_since AS lacks,
      count(*) OVER written_since AS rows
    FROM (
      SELECT u.lack, least(u.inflow, sum(u.lack) OVER ()) AS inflow -- More than that makes no difference.
      FROM unnest(look_lacks[1:looks], look_inflows[1:looks]) AS u (lack, inflow)
    ) AS f
    WINDOW written_since AS (ORDER BY f.inflow)
  ) AS g;
  bucket.value := balance;
ELSE
  balance := total;
  bucket.earlier_counts := bucket.earlier_counts[1:2] || rate || sums;
END IF;
may_drain[in_hand] := may_drain[in_hand] AND balance <= total + 1e-9 + 1e-14 * capacity;
parts := 1;
rows[in_hand] := bucket;
is_gathered[in_hand] := true;
gathered_rows[in_hand] := bucket;
gathered_limits[in_hand] := limit_in_hand;
gathered_ats[in_hand] := now;
gathered_totals[in_hand] := total;
