-- Takes tokens from the fullest rows of a sharded bucket: the difference between `before` and `after`. So it writes few rows and
-- splits few tokens. Returns whether that was possible: nothing else may have changed, and the rows together must hold the
-- balance of `before`. The caller has locked the rows, which are `shares`. The limit is that of the whole bucket.
CREATE OR REPLACE FUNCTION rate_limit._drain(
  shares rate_limit.rate_limits[], before rate_limit.rate_limits, after rate_limit.rate_limits, kind text, rate double precision,
  period bigint, capacity double precision, phase bigint, resolution integer
) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
DECLARE
  parts CONSTANT integer := cardinality(shares);
  now CONSTANT bigint := after.ts;
  tolerance CONSTANT double precision := 1e-9 + 1e-14 * capacity;
  total double precision := 0;
  rest double precision; -- still to be taken
  balances double precision[];
  nth integer;
BEGIN
  IF NOT coalesce(
    before.shards = after.shards AND after.shards = parts AND (shares[1]).shards = parts AND now >= before.ts, false)
  THEN
    RETURN false;
  END IF;
  before := rate_limit._adopt(kind, before, now, rate, period, capacity, phase, resolution);
  before := (rate_limit._take_from(kind, before, now, rate, period, capacity, phase, resolution, 0)).after;
  rest := CASE WHEN after.detail IS NULL THEN before.value - after.value ELSE after.value - before.value END;
  FOR place IN 1 .. parts LOOP
    balances[place] := rate_limit._left(
      kind, (shares[place]).value, (shares[place]).ts, (shares[place]).detail, now, rate / parts, period,
      capacity / parts, phase, resolution);
    total := total + balances[place];
    IF balances[place] < - tolerance
      OR NOT rate_limit._fits(kind, (shares[place]).detail, period, phase, resolution)
    THEN
      RETURN false;
    END IF;
  END LOOP;
  IF rest < 0 OR rest > total + tolerance OR before.detail IS DISTINCT FROM after.detail
    OR rate_limit._left(
      kind, before.value, before.ts, before.detail, now, rate, period, capacity, phase, resolution) > total + tolerance
  THEN
    RETURN false;
  END IF;
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
  RETURN true;
END
$function$;
