-- The answers to calls with an idempotency key, in the schema public.
-- For another schema, replace each `public.`. It may be run again, and locks no table that is there. This file never changes:
-- a later migration changes what it made.

-- The answers to calls with an idempotency key, written in the transaction that took their tokens. A row is written
-- once and removed once.
DO $table$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_answers$name$) IS NOT NULL THEN
    RETURN;
  END IF;
  CREATE TABLE public.rate_limit_answers (
    idempotency_key text COLLATE "C" NOT NULL,
    asked bigint NOT NULL,
    ready_at bigint,
    item_values double precision[] NOT NULL,
    expires_at bigint NOT NULL,
    CONSTRAINT rate_limit_answers_pkey PRIMARY KEY (idempotency_key)
  );
  COMMENT ON TABLE public.rate_limit_answers IS
    'Answers to calls with an idempotency key, until they expire. Written by the functions beside it only.';
  COMMENT ON COLUMN public.rate_limit_answers.idempotency_key IS 'What the caller gave.';
  COMMENT ON COLUMN public.rate_limit_answers.asked IS 'A hash of what was asked: one key is for one call.';
  COMMENT ON COLUMN public.rate_limit_answers.ready_at IS
    'For a reservation, the moment from which it may go ahead, in microseconds since the Unix epoch.';
  COMMENT ON COLUMN public.rate_limit_answers.item_values IS 'The balances that were answered, one an item.';
  COMMENT ON COLUMN public.rate_limit_answers.expires_at IS
    'The moment, in microseconds since the Unix epoch, from which the answer counts no more.';
END
$table$;

-- For pruning.
DO $index$
BEGIN
  IF pg_catalog.to_regclass($name$public.rate_limit_answers_expires_at$name$) IS NULL THEN
    CREATE INDEX rate_limit_answers_expires_at
      ON public.rate_limit_answers (expires_at);
  END IF;
END
$index$;
