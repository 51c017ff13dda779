-- Writes a sharded bucket that calls were decided on as one row, `before`. If they have only taken tokens, the fullest rows lose
-- the difference between `before` and `after`: so this writes few rows and splits few tokens. For that, the rows together must
-- hold the balance of `before`. Otherwise it writes `after.shards` rows with equal balances, or deletes the bucket if `after` has
-- no `ts`. The caller has locked the rows, which are `shares`. The limit is that of the whole bucket.
CREATE OR REPLACE FUNCTION rate_limit._spread(
  shares rate_limit.rate_limits[], before rate_limit.rate_limits, after rate_limit.rate_limits, kind text, rate double precision,
  period bigint, capacity double precision, start bigint, resolution integer
) RETURNS void LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  parts integer := cardinality(shares);
  now CONSTANT bigint := after.ts;
  phase CONSTANT bigint := rate_limit._grid(kind, start, period, after.name, after.key);
  tolerance CONSTANT double precision := rate_limit._tolerance(capacity, 0);
  total double precision := 0;
  rest double precision; -- still to be taken
  balances double precision[];
  nth integer;
  share rate_limit.rate_limits;
BEGIN
  <<drain>>
  BEGIN
    EXIT drain WHEN NOT coalesce(
      before.shards = after.shards AND after.shards = parts AND (shares[1]).shards = parts AND now >= before.ts, false);
    before := rate_limit._adopt(kind, before, now, rate, period, capacity, phase, resolution);
    before := (rate_limit._take_from(kind, before, now, rate, period, capacity, phase, resolution, 0)).after;
    rest := CASE WHEN after.detail IS NULL THEN before.value - after.value ELSE after.value - before.value END;
    FOR place IN 1 .. parts LOOP
      balances[place] := rate_limit._left(
        kind, (shares[place]).value, (shares[place]).ts, (shares[place]).detail, now, rate / parts, period,
        capacity / parts, phase, resolution);
      total := total + balances[place];
      EXIT drain WHEN balances[place] < - tolerance
        OR NOT rate_limit._fits(kind, (shares[place]).detail, period, phase, resolution);
    END LOOP;
    EXIT drain WHEN rest < 0 OR rest > total + tolerance OR before.detail IS DISTINCT FROM after.detail
      OR rate_limit._left(
        kind, before.value, before.ts, before.detail, now, rate, period, capacity, phase, resolution) > total + tolerance;
    FOR nth IN SELECT u.nth FROM unnest(balances) WITH ORDINALITY AS u (balance, nth) ORDER BY u.balance DESC LOOP
      EXIT WHEN rest <= 0;
      PERFORM rate_limit._write(
        shares[nth],
        (rate_limit._take_from(
          kind, shares[nth], now, rate / parts, period, capacity / parts, phase, resolution,
          least(rest, greatest(balances[nth], 0)))).after,
        false);
      rest := rest - greatest(balances[nth], 0);
    END LOOP;
    RETURN;
  END;

  parts := CASE WHEN after.ts IS NULL THEN 0 ELSE after.shards END;
  after.value := after.value / nullif(parts, 0);
  after.detail := after.detail[1:2] || ARRAY(
    SELECT u.count / nullif(parts, 0)
    FROM unnest(after.detail[3:]) WITH ORDINALITY AS u (count, nth)
    ORDER BY u.nth
  );
  IF after.detail = '{}' THEN
    after.detail := NULL;
  END IF;
  FOREACH share IN ARRAY shares LOOP
    after.shard := share.shard;
    PERFORM rate_limit._write(share, CASE WHEN share.shard < parts THEN after END, false);
  END LOOP;
  FOR nth_shard IN 0 .. parts - 1 LOOP
    CONTINUE WHEN EXISTS (SELECT FROM unnest(shares) AS s WHERE s.shard = nth_shard);
    INSERT INTO rate_limit.rate_limits (name, key, shard, shards, value, ts, idle_at, detail)
    VALUES (after.name, after.key, nth_shard, after.shards, after.value, after.ts, after.idle_at, after.detail)
    ON CONFLICT ON CONSTRAINT rate_limits_pkey DO NOTHING;
    IF NOT FOUND THEN -- The row was left over from a bucket with more rows.
      RAISE EXCEPTION 'could not serialize access to a bucket'
        USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
    END IF;
  END LOOP;
END
$function$;
