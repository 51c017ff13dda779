-- The table of buckets, in the schema public.
-- For another schema, replace each `public.`. It may be run again, and locks no table that is there. This file never changes:
-- a later migration changes what it made.

-- One row a bucket: two numbers (value, ts) and what a sliding window remembers.
--
-- The row is updated in place (HOT): no index holds a column that changes, and every page keeps room for the
-- next version. A distributed engine spreads its rows by the first column of the primary key. YugabyteDB would
-- put all keys of one name, or all shards of one key, on one tablet, so there the whole key is hashed.
DO $table$
DECLARE
  yugabyte CONSTANT boolean := pg_catalog.version() LIKE '%-YB-%';
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limits$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE TABLE public.rate_limits (
      name text COLLATE "C" NOT NULL,
      key text COLLATE "C" NOT NULL,
      shard integer NOT NULL DEFAULT 0,
      shards integer NOT NULL DEFAULT 1,
      value double precision NOT NULL,
      ts bigint NOT NULL,
      idle_at bigint NOT NULL,
      earlier_counts double precision[],
      CONSTRAINT rate_limits_pkey PRIMARY KEY (%s)
    ) %s
    $ddl$,
    CASE WHEN yugabyte THEN '(name, key, shard) HASH' ELSE 'name, key, shard' END,
    CASE WHEN yugabyte THEN '' ELSE 'WITH (fillfactor = 70)' END
  );
  COMMENT ON TABLE public.rate_limits IS
    'Rate limit buckets. A bucket without a row is full. Written by the functions beside it only.';
  COMMENT ON COLUMN public.rate_limits.name IS 'The limit''s name.';
  COMMENT ON COLUMN public.rate_limits.key IS 'Who is limited; empty for a global limit.';
  COMMENT ON COLUMN public.rate_limits.shard IS 'The part of a sharded bucket, from 0 on; 0 for the others.';
  COMMENT ON COLUMN public.rate_limits.shards IS 'How many rows its bucket has: each is the bucket of one part of the limit.';
  COMMENT ON COLUMN public.rate_limits.value IS
    'The balance at ts, negative while tokens are owed; for a sliding window the count of the sub-interval that holds ts.';
  COMMENT ON COLUMN public.rate_limits.ts IS
    'Microseconds since the Unix epoch: to_timestamp(ts / 1e6).';
  COMMENT ON COLUMN public.rate_limits.idle_at IS
    'The moment, in microseconds since the Unix epoch, from which the row equals no row.';
  COMMENT ON COLUMN public.rate_limits.earlier_counts IS
    'For a sliding window: its period, start and rate, then the counts of the sub-intervals before, newest first. NULL for the other kinds.';
END
$table$;
