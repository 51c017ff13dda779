-- Columns of the queue for jobs that pay ahead and for waits that handlers ask for, in the schema public.
-- For another schema, replace each `public.`. It may be run again, and locks no table that has the columns. This file never
-- changes: a later migration changes what it made.

DO $columns$
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($name$public.rate_limit_jobs$name$) AND a.attname = 'paid_item'
  )
  THEN
    ALTER TABLE public.rate_limit_jobs ADD COLUMN paid_item integer;
    COMMENT ON COLUMN public.rate_limit_jobs.paid_until IS
      'The job has taken the tokens of its start from one bucket before they are there. It starts when they are.';
    COMMENT ON COLUMN public.rate_limit_jobs.paid_item IS
      'The bucket it has taken them from: a place in limit_names and limit_keys.';
  END IF;
END
$columns$;

DO $columns$
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($name$public.rate_limit_jobs$name$) AND a.attname = 'waits'
  )
  THEN
    ALTER TABLE public.rate_limit_jobs ADD COLUMN waits integer NOT NULL DEFAULT 0, ADD COLUMN waits_until bigint;
    COMMENT ON COLUMN public.rate_limit_jobs.waits IS 'How often its handler asked to wait (Finish::Wait).';
    COMMENT ON COLUMN public.rate_limit_jobs.waits_until IS
      'The end of the last wait that its handler asked for: held_until of the group, for roles that may only read jobs.';
  END IF;
END
$columns$;

DO $columns$
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($name$public.rate_limit_groups$name$) AND a.attname = 'held_until'
  )
  THEN
    ALTER TABLE public.rate_limit_groups ADD COLUMN held_until bigint NOT NULL DEFAULT 0, ADD COLUMN refused_job bigint;
    COMMENT ON COLUMN public.rate_limit_groups.not_before IS 'Workers look at the group again at this time.';
    COMMENT ON COLUMN public.rate_limit_groups.held_until IS
      'A handler asked to wait until this time (Finish::Wait). Nothing of the group starts before.';
    COMMENT ON COLUMN public.rate_limit_groups.refused_job IS 'The job that its limits refused last.';
  END IF;
END
$columns$;

DO $index$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_jobs_paid$name$) IS NULL THEN
    CREATE INDEX rate_limit_jobs_paid
      ON public.rate_limit_jobs (queue, state, paid_until) WHERE paid_until IS NOT NULL;
  END IF;
END
$index$;

DO $index$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_jobs_dead$name$) IS NULL THEN
    CREATE INDEX rate_limit_jobs_dead
      ON public.rate_limit_jobs (queue, finished_at) WHERE state = 'dead';
  END IF;
END
$index$;
