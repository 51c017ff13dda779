-- Returns whether a limit is valid, and whether it can grant `count` tokens `times` times at once. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._can_take(
  rate double precision, period double precision, capacity double precision, amount double precision, count double precision,
  times integer
) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT rate_limit._in_range(rate, period, capacity) AND amount <= capacity AND rate_limit._is_exact(count, capacity)
    AND count * times = amount
$function$;

-- Ends a call that the UPDATE of _take_token_bucket, _fixed_window or _sliding_window has not ended. `balance` is what that
-- UPDATE left (NULL if it took nothing), `now` the time as of which it decided, and `waited` how long it took.
--
-- If it has taken the tokens, it has waited so long that another transaction may have locked the row without changing it. A
-- decision as of a time before that wait would count the refill since then twice, so it is made again. If it has taken none,
-- _decide_one decides.
CREATE OR REPLACE FUNCTION rate_limit._hand_on(
  balance double precision, waited bigint, now bigint, bucket_name text, bucket_key text, kind text, rate double precision,
  period bigint, capacity double precision, phase bigint, amount double precision, count double precision, times integer
) RETURNS double precision[] LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
  IF balance IS NULL THEN
    RETURN rate_limit._decide_one(
      bucket_name, bucket_key, kind, rate, period, capacity, NULL, phase, 1, 1, count, times, false,
      rate_limit._clock() <= now + 200);
  END IF;
  RETURN ARRAY[
    rate_limit._retake(
      bucket_name, bucket_key, 0, kind, rate, period, capacity, phase, 1, amount, amount, now + waited),
    waited];
END
$function$;
