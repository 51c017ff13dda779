-- Columns of the queue for jobs that take slots of concurrency limits when they start, in the schema public.
-- For another schema, replace each `public.`. It may be run again, and locks no table that has the columns. This file never
-- changes: a later migration changes what it made.

DO $columns$
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($name$public.rate_limit_jobs$name$) AND a.attname = 'slot_names'
  )
  THEN
    ALTER TABLE public.rate_limit_jobs
      ADD COLUMN slot_names text[], ADD COLUMN slot_keys text[], ADD COLUMN slot_counts double precision[],
      ADD COLUMN slot_lease bigint;
    COMMENT ON COLUMN public.rate_limit_jobs.slot_names IS
      'The concurrency limits of the job. It takes their slots when it starts. NULL: it has none.';
    COMMENT ON COLUMN public.rate_limit_jobs.slot_lease IS 'The lease under which its last start took the slots.';
  END IF;
END
$columns$;

DO $columns$
BEGIN
  IF NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = pg_catalog.to_regclass($name$public.rate_limit_groups$name$) AND a.attname = 'slot_name'
  )
  THEN
    ALTER TABLE public.rate_limit_groups
      ADD COLUMN slot_name text COLLATE "C", ADD COLUMN slot_key text COLLATE "C", ADD COLUMN slot_count double precision,
      ADD COLUMN slot_since bigint, ADD COLUMN slot_pause bigint;
    COMMENT ON COLUMN public.rate_limit_groups.slot_name IS
      'The concurrency limit whose slots the first job of the group waits for. NULL: it waits for none.';
    COMMENT ON COLUMN public.rate_limit_groups.slot_count IS 'How many slots that job needs.';
    COMMENT ON COLUMN public.rate_limit_groups.slot_since IS 'The run_at of that job: the group that has waited longest is first.';
    COMMENT ON COLUMN public.rate_limit_groups.slot_pause IS
      'The last pause, in microseconds, because another transaction had locked the row of the slots.';
  END IF;
END
$columns$;

DO $index$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_groups_slots$name$) IS NULL THEN
    CREATE INDEX rate_limit_groups_slots
      ON public.rate_limit_groups (slot_name, slot_key, queue, slot_since, key) WHERE slot_name IS NOT NULL;
  END IF;
END
$index$;
