-- rate_limit_drain(rate_limits[], rate_limits, rate_limits, text, double precision, bigint, double precision, bigint, integer)
-- SHA-256: 4f60027092af73839332dc5cbf42b98290f90317f3bb325892510dc5df6baf03

-- Takes the difference between `before` and `after` from the fullest rows of a bucket, so that it writes few rows and splits
-- few tokens. Returns whether that was possible: nothing else may have changed, and the rows together must hold the balance
-- of `before`. The caller has locked the rows, which are `shares`. The limit is that of the whole bucket.
CREATE OR REPLACE FUNCTION public.rate_limit_drain(
  shares public.rate_limits[], before public.rate_limits, after public.rate_limits, kind text, rate double precision,
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
  IF NOT coalesce(before.shards = after.shards AND after.shards = parts AND (shares[1]).shards = parts AND now >= before.ts, false)
  THEN
    RETURN false;
  END IF;
  before := public.rate_limit_adopt(kind, before, now, rate, period, capacity, phase, resolution);
  before := (public.rate_limit_take_from(kind, before, now, rate, period, capacity, phase, resolution, 0)).after;
  rest := CASE WHEN after.earlier_counts IS NULL THEN before.value - after.value ELSE after.value - before.value END;
  FOR place IN 1 .. parts LOOP
    balances[place] := public.rate_limit_left(
      kind, (shares[place]).value, (shares[place]).ts, (shares[place]).earlier_counts, now, rate / parts, period,
      capacity / parts, phase, resolution);
    total := total + balances[place];
    IF balances[place] < - tolerance
      OR NOT public.rate_limit_fits(kind, (shares[place]).earlier_counts, period, phase, resolution)
    THEN
      RETURN false;
    END IF;
  END LOOP;
  IF rest < 0 OR rest > total + tolerance OR before.earlier_counts IS DISTINCT FROM after.earlier_counts
    OR public.rate_limit_left(
      kind, before.value, before.ts, before.earlier_counts, now, rate, period, capacity, phase, resolution) > total + tolerance
  THEN
    RETURN false;
  END IF;
  FOR nth IN SELECT u.nth FROM unnest(balances) WITH ORDINALITY AS u (balance, nth) ORDER BY u.balance DESC LOOP
    EXIT WHEN rest <= 0;
    PERFORM public.rate_limit_write(
      shares[nth],
      (public.rate_limit_take_from(
        kind, shares[nth], now, rate / parts, period, capacity / parts, phase, resolution,
        least(rest, greatest(balances[nth], 0)))).after,
      false);
    rest := rest - greatest(balances[nth], 0);
  END LOOP;
  RETURN true;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_drain IS 'Takes tokens from the fullest rows of a sharded bucket.';
