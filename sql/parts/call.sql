-- Decides the nth call.
times := CASE WHEN call_times IS NULL THEN 1 ELSE call_times[nth] END;
first_item := last_item + 1;
last_item := last_item + greatest(coalesce(call_sizes[nth], 1), 1);
IF is_settled[first_item] THEN
  call_admitted[nth] := times;
  IF call_reserves IS NULL THEN
    call_waits[nth] := NULL;
  END IF;
  FOR item IN first_item .. last_item LOOP
    item_refused[item] := false;
  END LOOP;
  CONTINUE;
END IF;
op := coalesce(call_ops[nth], '');
at := coalesce(call_ats[nth], clock);
grouped := last_item > first_item;
refused := false;
call_waits[nth] := NULL;
IF grouped THEN
  --@include put_away
  in_hand := NULL;
END IF;
IF NOT coalesce(times = 1 OR (times > 1 AND op = 'limit' AND NOT grouped AND call_reserves[nth] IS NOT TRUE), false)
THEN
  RAISE EXCEPTION 'call % cannot be made % times at once', nth, coalesce(times::text, 'NULL')
    USING ERRCODE = 'invalid_parameter_value', HINT = 'Only "limit" of one item, without reserving, can.';
END IF;
admitted := 0;

<<each_item>>
FOR item IN first_item .. last_item LOOP
  IF grouped THEN
    b := item_buckets[item];
    undo_rows[item] := rows[b];
    undo_present[item] := row_present[b];
    undo_gathered[item] := is_gathered[b];
  END IF;
  count := item_counts[item];
  IF NOT coalesce(count = 0 OR count BETWEEN 1e-100 AND 1e100, false) THEN -- NaN is above all numbers here.
    RAISE EXCEPTION 'invalid_count: the count % for the limit "%" is not 0 or a number from 1e-100 to 1e100',
      count, bucket_names[item_buckets[item]]
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for a count of 0 or more.';
  END IF;

  done := op <> 'credit' AND op <> 'reset';
  CONTINUE WHEN widened AND looks_at_all[item_buckets[item]] AND share_counts[item_buckets[item]] IS NULL;
  LOOP
    IF in_hand IS DISTINCT FROM item_buckets[item]
      OR limit_in_hand <> item_limits[item]
      OR moment IS DISTINCT FROM at
    THEN
      --@include put_away
      --@include take_up
    END IF;
    EXIT WHEN done;
    -- These two change the state itself; then it is taken up again, to see the balance.
    IF present THEN
      IF op = 'reset' THEN
        present := false;
      ELSE
        --@kinds credit
      END IF;
      row_changed[in_hand] := true;
      pending := true;
      touched := true;
      moment := NULL;
    END IF;
    done := true;
  END LOOP;

  after := balance;
  ok := true;
  wait := NULL;
  IF op = 'limit' OR op = 'check' THEN
    after := balance - count;
    least_balance := 0;
    slack := tolerance;
    IF call_reserves[nth] THEN
      --@kinds reserve
      IF parts = 1 THEN
        least_balance := - limit_max_reserved[limit_in_hand];
        slack := tolerance + 1e-14 * coalesce(- least_balance, 0);
      END IF;
    END IF;
    IF parts > 1 THEN -- One row can only say yes.
      IF balance - count * times < - tolerance THEN
        --@include widen
      END IF;
    ELSIF count > capacity - least_balance + slack THEN
      RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
        count, bucket_names[in_hand], capacity - least_balance
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Ask for less at once, or raise the capacity.';
    END IF;
    IF times > 1 THEN -- All but one at once, as far as there is enough; that one goes the way of a single call.
      admitted := CASE WHEN count = 0 THEN times - 1 ELSE floor(least((balance + slack) / count, times - 1)) END;
      IF admitted > 0 AND balance >= - slack THEN
        one := count;
        count := one * admitted;
        --@kinds take
        balance := balance - count;
        count := one;
        after := balance - count;
        present := true;
        touched := true;
        row_changed[in_hand] := true;
        pending := true;
      ELSE
        admitted := 0;
      END IF;
    END IF;
    ok := least_balance IS NULL OR after >= least_balance - slack;
    IF NOT ok OR after < - tolerance THEN
      missing := CASE WHEN ok THEN - after ELSE least_balance - after END;
      --@kinds wait
      -- A balance does not grow before the clock has come to where the row is.
      wait := least(wait, 1e18) + (now - moment);
      IF ok = NOT refused THEN
        call_waits[nth] := greatest(call_waits[nth], wait::bigint);
      ELSIF NOT ok THEN -- The first refusal: what the others would have waited for is taken back.
        call_waits[nth] := wait::bigint;
      END IF;
    END IF;
    refused := refused OR NOT ok;
  ELSIF op = 'charge' THEN
    after := balance - count;
    IF parts > 1 AND after < - tolerance THEN
      --@include widen
    END IF;
  ELSIF op <> 'credit' AND op <> 'reset' THEN
    RAISE EXCEPTION 'unknown operation "%"', op
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use limit, check, credit, charge or reset.';
  END IF;

  item_refused[item] := NOT ok;
  item_values[item] := CASE
    WHEN NOT ok THEN balance
    WHEN parts > 1 THEN after + beyond_rows[in_hand]
    WHEN abs(after) <= tolerance THEN 0
    ELSE after
  END;
  IF grouped THEN
    undo_balance[item] := CASE WHEN parts > 1 THEN balance + beyond_rows[in_hand] ELSE balance END;
  END IF;
  -- In a group provisionally, until all of it has passed.
  IF op = 'charge' OR (op = 'limit' AND (ok OR grouped)) THEN
    --@kinds take
    balance := after;
    present := true;
    touched := true;
    IF NOT grouped THEN
      row_changed[in_hand] := true;
      pending := true;
    END IF;
  END IF;
  IF parts > 1 THEN
    spare_balances[in_hand] := after;
    asked_counts[in_hand] := coalesce(asked_counts[in_hand], 0) + count * times;
  END IF;
END LOOP;

IF grouped AND (refused OR op = 'check') THEN
  in_hand := NULL;
  touched := false;
  FOR item IN REVERSE last_item .. first_item LOOP
    b := item_buckets[item];
    rows[b] := undo_rows[item];
    row_present[b] := undo_present[item];
    is_gathered[b] := undo_gathered[item];
    IF refused THEN
      item_values[item] := undo_balance[item];
    END IF;
  END LOOP;
END IF;
call_admitted[nth] := CASE WHEN times = 1 AND NOT refused THEN 1 ELSE admitted + (NOT refused)::integer END;
IF grouped THEN
  FOR item IN first_item .. last_item LOOP
    IF (op = 'limit' AND NOT refused) OR op = 'charge' THEN
      row_changed[item_buckets[item]] := true;
      pending := true;
    END IF;
  END LOOP;
END IF;
