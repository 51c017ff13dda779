-- Views for people with psql, in the schema public: what is stored, with readable times. Nothing else reads them.
-- For another schema, replace each `public.`. It may be run again, and locks nothing if the views exist. This file never
-- changes: a later migration changes what it made. To change the type of a column, drop the views that have it first.
--
-- Limits are values of the application, so the views have no rates and no capacities.

DO $view$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_buckets$name$) IS NULL THEN
    CREATE VIEW public.rate_limit_buckets AS
    SELECT
      r.name,
      r.key,
      pg_catalog.max(r.shards) AS shards,
      pg_catalog.sum(r.value) AS value,
      CASE
        WHEN pg_catalog.max(r.earlier_counts[1]) = -1 THEN 'slots in use'
        WHEN pg_catalog.max(r.earlier_counts[1]) IS NOT NULL THEN 'tokens taken'
        ELSE 'tokens left'
      END AS meaning,
      pg_catalog.to_timestamp(pg_catalog.max(r.ts) / 1e6) AS since,
      pg_catalog.to_timestamp(pg_catalog.max(r.idle_at) / 1e6) AS full_at
    FROM public.rate_limits AS r
    GROUP BY r.name, r.key;
    COMMENT ON VIEW public.rate_limit_buckets IS 'The buckets that have rows. A bucket without a row is full.';
    COMMENT ON COLUMN public.rate_limit_buckets.shards IS 'How many rows the bucket has.';
    COMMENT ON COLUMN public.rate_limit_buckets.value IS
      'The sum over the rows, each as of its last write: what has been refilled or has ended since is not in it.';
    COMMENT ON COLUMN public.rate_limit_buckets.meaning IS
      'What value counts: tokens left (negative: owed), tokens taken in the present part of a sliding window, or slots in use.';
    COMMENT ON COLUMN public.rate_limit_buckets.since IS
      'The last write; for a fixed or calendar window, the start of the window of the last write.';
    COMMENT ON COLUMN public.rate_limit_buckets.full_at IS
      'When the bucket is full if nothing more is taken. From then on, its row means the same as no row.';
  END IF;
END
$view$;

DO $view$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_queue_groups$name$) IS NULL THEN
    CREATE VIEW public.rate_limit_queue_groups AS
    SELECT
      j.queue,
      j.key,
      j.scheduled,
      j.available,
      pg_catalog.to_timestamp(greatest(j.first_at, g.held_until) / 1e6) AS next_start,
      CASE WHEN g.has_line THEN g.lag / 1e6 * interval '1 second' END AS lag,
      g.slot_name AS waits_for_limit,
      g.slot_key AS waits_for_key
    FROM (
      SELECT
        w.queue,
        w.key,
        pg_catalog.count(*) FILTER (WHERE w.state = 'scheduled') AS scheduled,
        pg_catalog.count(*) FILTER (WHERE w.state = 'available') AS available,
        pg_catalog.min(greatest(w.run_at, w.paid_until)) AS first_at
      FROM public.rate_limit_jobs AS w
      WHERE w.state IN ('scheduled', 'available')
      GROUP BY w.queue, w.key
    ) AS j
    LEFT JOIN public.rate_limit_groups AS g ON g.queue = j.queue AND g.key = j.key;
    COMMENT ON VIEW public.rate_limit_queue_groups IS 'The groups of the queues in which jobs wait.';
    COMMENT ON COLUMN public.rate_limit_queue_groups.available IS
      'Jobs that are due, and wait in line because the limit lets none start yet.';
    COMMENT ON COLUMN public.rate_limit_queue_groups.next_start IS 'No waiting job of the group starts before.';
    COMMENT ON COLUMN public.rate_limit_queue_groups.lag IS
      'How far the line is behind the times reserved for its jobs. NULL: there is no line.';
    COMMENT ON COLUMN public.rate_limit_queue_groups.waits_for_limit IS
      'The concurrency limit for whose slots its first job waits. NULL: it waits for none.';
  END IF;
END
$view$;

DO $view$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_queue_jobs$name$) IS NULL THEN
    CREATE VIEW public.rate_limit_queue_jobs AS
    SELECT
      j.id,
      j.queue,
      j.key,
      j.state,
      j.priority,
      pg_catalog.to_timestamp(j.enqueued_at / 1e6) AS enqueued_at,
      pg_catalog.to_timestamp(greatest(j.run_at, j.paid_until) / 1e6) AS run_at,
      pg_catalog.to_timestamp(j.started_at / 1e6) AS started_at,
      pg_catalog.to_timestamp(j.lease_until / 1e6) AS lease_until,
      pg_catalog.to_timestamp(j.finished_at / 1e6) AS finished_at,
      j.worker,
      j.starts,
      j.failures,
      j.max_attempts,
      j.last_error
    FROM public.rate_limit_jobs AS j;
    COMMENT ON VIEW public.rate_limit_queue_jobs IS 'The jobs of the queues, without their payloads and unique ids.';
    COMMENT ON COLUMN public.rate_limit_queue_jobs.run_at IS 'The time reserved for the job. It never starts before.';
    COMMENT ON COLUMN public.rate_limit_queue_jobs.lease_until IS
      'When a running job is given to another worker, if its worker does not renew it.';
  END IF;
END
$view$;
