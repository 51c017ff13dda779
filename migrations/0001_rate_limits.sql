-- The core: the tables of buckets and of answers, in the schema rate_limit.
-- For another schema, replace each `rate_limit.`. It can run again, and locks nothing that exists. After a release this file
-- never changes: a later migration changes what it created.

-- One row a bucket: two numbers (value, ts) and what a sliding window remembers.
--
-- The row is updated in place (HOT): no index holds a column that changes, and every page keeps room for the
-- next version. A distributed engine spreads its rows by the first column of the primary key. YugabyteDB would
-- put all keys of one name, or all shards of one key, on one tablet, so there the whole key is hashed.
DO $table$
DECLARE
  yugabyte CONSTANT boolean := pg_catalog.version() LIKE '%-YB-%';
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.rate_limits$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  EXECUTE pg_catalog.format(
    $ddl$
    CREATE TABLE rate_limit.rate_limits (
      name text COLLATE "C" NOT NULL,
      key text COLLATE "C" NOT NULL,
      shard integer NOT NULL DEFAULT 0,
      shards integer NOT NULL DEFAULT 1,
      value double precision NOT NULL,
      ts bigint NOT NULL,
      idle_at bigint NOT NULL,
      detail double precision[],
      CONSTRAINT rate_limits_pkey PRIMARY KEY (%s)
    ) %s
    $ddl$,
    CASE WHEN yugabyte THEN '(name, key, shard) HASH' ELSE 'name, key, shard' END,
    CASE WHEN yugabyte THEN '' ELSE 'WITH (fillfactor = 70)' END
  );
  COMMENT ON TABLE rate_limit.rate_limits IS
    'Rate limit buckets. A bucket without a row is full. Written by the functions beside it only.';
  COMMENT ON COLUMN rate_limit.rate_limits.name IS 'The limit''s name.';
  COMMENT ON COLUMN rate_limit.rate_limits.key IS 'Who is limited; empty for a global limit.';
  COMMENT ON COLUMN rate_limit.rate_limits.shard IS 'The part of a sharded bucket, from 0 on; 0 for the others.';
  COMMENT ON COLUMN rate_limit.rate_limits.shards IS 'How many rows its bucket has: each is the bucket of one part of the limit.';
  COMMENT ON COLUMN rate_limit.rate_limits.value IS
    'The balance at ts, negative while tokens are owed; for a sliding window the count of the sub-interval that holds ts.';
  COMMENT ON COLUMN rate_limit.rate_limits.ts IS
    'The last change, in microseconds since the Unix epoch: to_timestamp(ts / 1e6).';
  COMMENT ON COLUMN rate_limit.rate_limits.idle_at IS
    'The moment, in microseconds since the Unix epoch, from which the row equals no row.';
  COMMENT ON COLUMN rate_limit.rate_limits.detail IS
    'Sliding window: its period, start and rate, then the counts of the sub-intervals before, newest first. Concurrency limit: -1 and the leases. Block: -2.';
END
$table$;

-- The answers to calls with an idempotency key, written in the transaction that took their tokens. A row is written
-- once and removed once.
DO $table$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.answers$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  CREATE TABLE rate_limit.answers (
    idempotency_key text COLLATE "C" NOT NULL,
    asked bigint NOT NULL,
    ready_at bigint,
    item_values double precision[] NOT NULL,
    expires_at bigint NOT NULL,
    CONSTRAINT answers_pkey PRIMARY KEY (idempotency_key)
  );
  COMMENT ON TABLE rate_limit.answers IS
    'Answers to calls with an idempotency key, until they expire. Written by the functions beside it only.';
  COMMENT ON COLUMN rate_limit.answers.idempotency_key IS 'What the caller gave.';
  COMMENT ON COLUMN rate_limit.answers.asked IS 'A hash of what was asked: one key is for one call.';
  COMMENT ON COLUMN rate_limit.answers.ready_at IS
    'For a reservation, the moment from which it may go ahead, in microseconds since the Unix epoch.';
  COMMENT ON COLUMN rate_limit.answers.item_values IS 'The balances that were answered, one an item.';
  COMMENT ON COLUMN rate_limit.answers.expires_at IS
    'The moment, in microseconds since the Unix epoch, from which the answer counts no more.';
END
$table$;

-- For pruning.
DO $index$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.answers_expires_at$name$) IS NULL THEN
    CREATE INDEX answers_expires_at
      ON rate_limit.answers (expires_at);
  END IF;
END
$index$;

-- Stored limits, for calls that name a limit without giving its rule. A definition is added and never changed: the last one of a
-- name counts, and the others are its history. `kind`, `period` and `start` are as _decide takes them.
DO $table$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.definitions$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  CREATE TABLE rate_limit.definitions (
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    kind text,
    rate double precision,
    period bigint,
    capacity double precision,
    max_reserved double precision,
    start bigint,
    resolution integer,
    shards integer,
    defined_at timestamp with time zone NOT NULL,
    defined_by text NOT NULL,
    CONSTRAINT definitions_pkey PRIMARY KEY (name, version)
  );
  COMMENT ON TABLE rate_limit.definitions IS
    'All definitions of stored limits: the last one of a name counts. Written by the functions beside it only.';
  COMMENT ON COLUMN rate_limit.definitions.name IS 'The limit''s name.';
  COMMENT ON COLUMN rate_limit.definitions.version IS 'Counts the definitions of a name, from 1 on.';
  COMMENT ON COLUMN rate_limit.definitions.kind IS
    'The kind, with the calendar of a calendar window. NULL: from then on, the limit was not defined.';
  COMMENT ON COLUMN rate_limit.definitions.rate IS 'Tokens for each period; of a concurrency limit its slots.';
  COMMENT ON COLUMN rate_limit.definitions.period IS 'The period, or the length of a lease, in microseconds.';
  COMMENT ON COLUMN rate_limit.definitions.capacity IS 'As in the limit''s options; NULL: the default.';
  COMMENT ON COLUMN rate_limit.definitions.max_reserved IS 'As in the limit''s options; NULL: the default.';
  COMMENT ON COLUMN rate_limit.definitions.start IS 'A start of windows, in microseconds since the epoch; NULL: the default.';
  COMMENT ON COLUMN rate_limit.definitions.resolution IS 'As in the limit''s options; NULL: the default.';
  COMMENT ON COLUMN rate_limit.definitions.shards IS 'The number of rows of a bucket.';
  COMMENT ON COLUMN rate_limit.definitions.defined_at IS 'When it was defined.';
  COMMENT ON COLUMN rate_limit.definitions.defined_by IS 'The role that defined it.';
END
$table$;

-- Views for people with psql: what is stored, with readable times. To change the type of a column, a migration drops the views
-- that contain it first.
--
-- Limits can be values of the application, so the view of buckets has no rates and no capacities.
DO $view$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.buckets$name$) IS NULL THEN
    CREATE VIEW rate_limit.buckets AS
    SELECT
      r.name,
      r.key,
      pg_catalog.max(r.shards) AS shards,
      pg_catalog.sum(r.value) AS value,
      CASE
        WHEN pg_catalog.max(r.detail[1]) = -1 THEN 'slots in use'
        WHEN pg_catalog.max(r.detail[1]) = -2 THEN 'blocked'
        WHEN pg_catalog.max(r.detail[1]) IS NOT NULL THEN 'tokens taken'
        ELSE 'tokens left'
      END AS meaning,
      pg_catalog.to_timestamp(pg_catalog.max(r.ts) / 1e6) AS since,
      pg_catalog.to_timestamp(pg_catalog.max(r.idle_at) / 1e6) AS full_at
    FROM rate_limit.rate_limits AS r
    GROUP BY r.name, r.key;
    COMMENT ON VIEW rate_limit.buckets IS 'The buckets that have rows. A bucket without a row is full.';
    COMMENT ON COLUMN rate_limit.buckets.shards IS 'How many rows the bucket has.';
    COMMENT ON COLUMN rate_limit.buckets.value IS
      'The sum over the rows, each as of its last write: what has been refilled or has ended since is not in it.';
    COMMENT ON COLUMN rate_limit.buckets.meaning IS
      'What value counts: tokens left (negative: owed), tokens taken in the present part of a sliding window, or slots in use; nothing for a block.';
    COMMENT ON COLUMN rate_limit.buckets.since IS 'The last write.';
    COMMENT ON COLUMN rate_limit.buckets.full_at IS
      'When the bucket is full if nothing more is taken. From then on, its row means the same as no row.';
  END IF;
END
$view$;

-- The stored limits as people write them. limit_all reads it, too.
DO $view$
BEGIN
  IF pg_catalog.to_regclass($name$rate_limit.limits$name$) IS NULL THEN
    CREATE VIEW rate_limit.limits AS
    SELECT
      d.name,
      pg_catalog.split_part(d.kind, ' ', 1) AS kind,
      CASE WHEN d.kind NOT IN ('concurrency', 'gate') THEN d.rate END AS rate,
      CASE
        WHEN d.kind IN ('token_bucket', 'fixed_window', 'sliding_window') THEN d.period * interval '1 microsecond'
      END AS period,
      CASE d.kind WHEN 'concurrency' THEN d.rate WHEN 'gate' THEN NULL ELSE d.capacity END AS capacity,
      CASE WHEN d.kind <> 'gate' THEN d.max_reserved END AS max_reserved,
      d.start * interval '1 microsecond' AS start,
      d.resolution,
      CASE WHEN d.shards > 1 THEN d.shards END AS shards,
      CASE
        WHEN d.kind LIKE 'calendar_window %'
        THEN pg_catalog.split_part(d.kind, ' ', 2) || ' ' || pg_catalog.split_part(d.kind, ' ', 3)
      END AS every,
      CASE WHEN d.kind LIKE 'calendar_window %' THEN nullif(pg_catalog.split_part(d.kind, ' ', 4), 'UTC') END AS zone,
      CASE
        WHEN d.kind LIKE 'calendar_window %'
          AND pg_catalog.split_part(d.kind, ' ', 5)
            <> CASE pg_catalog.split_part(d.kind, ' ', 3) WHEN 'week' THEN '1970-01-05T00:00:00' ELSE '1970-01-01T00:00:00' END
        THEN pg_catalog.replace(
          pg_catalog.regexp_replace(pg_catalog.regexp_replace(pg_catalog.split_part(d.kind, ' ', 5), 'T00:00:00$', ''), ':00$', ''),
          'T', ' ')
      END AS anchor,
      CASE WHEN d.kind = 'concurrency' THEN d.period * interval '1 microsecond' END AS lease,
      d.defined_at,
      d.defined_by
    FROM (
      SELECT DISTINCT ON (d.name) d.*
      FROM rate_limit.definitions AS d
      ORDER BY d.name, d.version DESC
    ) AS d
    WHERE d.kind IS NOT NULL;
    COMMENT ON VIEW rate_limit.limits IS
      'The stored limits. An option that is NULL has its default, or does not apply to the kind.';
    COMMENT ON COLUMN rate_limit.limits.rate IS 'Tokens for each period.';
    COMMENT ON COLUMN rate_limit.limits.capacity IS 'Of a concurrency limit, the number of slots.';
    COMMENT ON COLUMN rate_limit.limits.every IS 'The length of the windows of a calendar window.';
    COMMENT ON COLUMN rate_limit.limits.lease IS 'The length of a lease of a concurrency limit.';
    COMMENT ON COLUMN rate_limit.limits.defined_at IS 'When this was defined. The table `definitions` has what was before.';
    COMMENT ON COLUMN rate_limit.limits.defined_by IS 'The role that defined this.';
  END IF;
END
$view$;
