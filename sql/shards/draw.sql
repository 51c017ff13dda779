-- Draws two rows of a sharded bucket and returns one of them. Among the rows that cover `amount`, it prefers one that is not
-- in use, and then the fuller one (M. Mitzenmacher, "The power of two choices in randomized load balancing", 1996). Returns
-- NULL if all rows have to be read: neither row covers `amount`, or a row does not belong to this limit. `beyond` is the
-- estimated number of tokens in the other rows. `at` is the time; NULL: the database's clock.
--
-- A transaction that waits for a row and then finds too few tokens in it cannot wait for the other rows, because that could
-- deadlock. So under READ COMMITTED, where this can happen, a row has to hold several times the amount, and many times if it
-- is in use.
CREATE OR REPLACE FUNCTION rate_limit._draw(
  bucket_name text, bucket_key text, kind text, rate double precision, period bigint, capacity double precision, start bigint,
  resolution integer, shards integer, amount double precision, at bigint, OUT bucket rate_limit.rate_limits,
  OUT beyond double precision
) LANGUAGE plpgsql VOLATILE
AS $function$
#variable_conflict use_variable
DECLARE
  first CONSTANT integer := floor(random() * shards);
  second CONSTANT integer := (first + 1 + floor(random() * (shards - 1))::integer) % shards;
  waits CONSTANT boolean := current_setting('transaction_isolation') IN ('read committed', 'read uncommitted');
  now CONSTANT bigint := coalesce(at, rate_limit._clock());
  phase CONSTANT bigint := rate_limit._grid(kind, start, period, bucket_name, bucket_key);
  drawn record;
BEGIN
  SELECT d.bucket AS bucket, sum(d.balance) OVER () * shards / 2 - d.balance AS beyond, d.covers
  INTO drawn
  FROM (
    SELECT
      f.*,
      f.balance >= amount * CASE WHEN NOT waits THEN 1 WHEN f.in_use THEN 32 ELSE 4 END AS covers
    FROM (
    SELECT
      r.bucket,
      r.in_use,
      rate_limit._left(
        kind, (r.bucket).value, (r.bucket).ts, (r.bucket).detail, greatest(now, (r.bucket).ts), rate / shards, period,
        capacity / shards, phase, resolution) AS balance
    FROM unnest(ARRAY[first, second]) AS u (shard)
    CROSS JOIN LATERAL (
      SELECT s.* FROM rate_limit._rows(bucket_name, bucket_key) AS s WHERE s.shard = u.shard LIMIT 1
    ) AS r
    WHERE (r.bucket).shards = _draw.shards
      AND rate_limit._fits(kind, (r.bucket).detail, period, phase, resolution)
    ) AS f
  ) AS d
  ORDER BY d.covers DESC, d.in_use, d.balance DESC
  LIMIT 1;
  IF drawn.covers THEN
    bucket := drawn.bucket;
    beyond := drawn.beyond;
  END IF;
END
$function$;
