-- Replaces the tokens that were just taken from a locked row. It undoes an UPDATE that took `taken` tokens, and takes `amount`
-- instead at `at`, or at the time of that UPDATE if `at` is NULL. The caller has locked the row. Returns the balance that is
-- left.
CREATE OR REPLACE FUNCTION rate_limit._retake(
  bucket_name text, bucket_key text, nth_shard integer, kind text, rate double precision, period bigint,
  capacity double precision, phase bigint, resolution integer, taken double precision, amount double precision, at bigint
) RETURNS double precision LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  bucket rate_limit.rate_limits;
  again record;
BEGIN
  SELECT r.*
  INTO bucket
  FROM rate_limit.rate_limits AS r
  WHERE r.name = bucket_name AND r.key = bucket_key AND r.shard = nth_shard;
  again := rate_limit._take_from(kind, bucket, bucket.ts, rate, period, capacity, phase, resolution, - taken);
  again := rate_limit._take_from(
    kind, again.after, greatest(at, bucket.ts), rate, period, capacity, phase, resolution, amount);
  PERFORM rate_limit._write(again.after, again.after, false);
  RETURN again.remaining;
END
$function$;
