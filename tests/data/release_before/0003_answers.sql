
CREATE TABLE IF NOT EXISTS public.rate_limit_answers (
  idempotency_key text COLLATE "C" NOT NULL,
  asked bigint NOT NULL,
  ready_at bigint,
  item_values double precision[] NOT NULL,
  expires_at bigint NOT NULL,
  CONSTRAINT rate_limit_answers_pkey PRIMARY KEY (idempotency_key)
);
CREATE INDEX IF NOT EXISTS rate_limit_answers_expires_at ON public.rate_limit_answers (expires_at);

COMMENT ON TABLE public.rate_limit_answers IS
  'Answers to calls with an idempotency key, until they expire. Written by the functions beside it only.';
COMMENT ON COLUMN public.rate_limit_answers.idempotency_key IS 'What the caller gave.';
COMMENT ON COLUMN public.rate_limit_answers.asked IS 'A hash of what was asked: one key is for one call.';
COMMENT ON COLUMN public.rate_limit_answers.ready_at IS
  'For a reservation, the moment from which it may go ahead, in microseconds since the Unix epoch.';
COMMENT ON COLUMN public.rate_limit_answers.item_values IS 'The balances that were answered, one an item.';
COMMENT ON COLUMN public.rate_limit_answers.expires_at IS
  'The moment, in microseconds since the Unix epoch, from which the answer counts no more.';

CREATE OR REPLACE FUNCTION public.rate_limit_decide_once(
  idempotency_key text,
  keep bigint,
  limit_kinds text[],
  limit_rates double precision[],
  limit_periods bigint[],
  limit_capacities double precision[],
  limit_max_reserved double precision[],
  limit_starts bigint[],
  limit_resolutions integer[],
  limit_shards integer[],
  bucket_names text[],
  bucket_keys text[],
  item_buckets integer[],
  item_limits integer[],
  item_counts double precision[],
  call_sizes integer[],
  call_op text,
  call_reserve boolean,
  OUT outcome text,
  OUT call_admitted integer[],
  OUT call_waits bigint[],
  OUT item_refused boolean[],
  OUT item_values double precision[]
)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
SET extra_float_digits = 3
AS $function$
#variable_conflict use_variable
DECLARE
  asked CONSTANT bigint := hashtextextended(
    ROW(call_op, call_reserve, bucket_names, bucket_keys, item_buckets, item_counts)::text COLLATE "C", 0
  );
  clock bigint;
  answer public.rate_limit_answers;
BEGIN
  IF NOT coalesce(octet_length(idempotency_key) BETWEEN 1 AND 255 AND keep > 0, false) THEN
    RAISE EXCEPTION 'invalid_idempotency_key: it has 1 to 255 bytes, and is kept for a time above 0'
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give each request a short key of its own.';
  END IF;
  LOOP
    SELECT a.*
    INTO answer
    FROM public.rate_limit_answers AS a
    WHERE a.idempotency_key = rate_limit_decide_once.idempotency_key;
    clock := public.rate_limit_clock();
    IF answer.expires_at > clock THEN
      IF answer.asked <> asked THEN
        outcome := 'mismatched';
        RETURN;
      END IF;
      outcome := 'repeated';
      call_admitted := ARRAY[1];
      call_waits := ARRAY[CASE WHEN answer.ready_at IS NOT NULL THEN greatest(answer.ready_at - clock, 0) END];
      item_refused := array_fill(false, ARRAY[cardinality(answer.item_values)]);
      item_values := answer.item_values;
      RETURN;
    END IF;
    IF outcome = 'decided' THEN
      RETURN;
    END IF;

    SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values
    INTO call_admitted, call_waits, item_refused, item_values
    FROM public.rate_limit_decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
      limit_shards, bucket_names, bucket_keys, item_buckets, item_limits, item_counts, ARRAY[call_op],
      ARRAY[call_reserve], call_sizes, NULL, NULL
    ) AS d;
    outcome := 'decided';
    EXIT WHEN coalesce(call_admitted[1], 1) = 1;
  END LOOP;
  IF answer.expires_at IS NOT NULL THEN
    DELETE FROM public.rate_limit_answers AS a
    WHERE a.idempotency_key = rate_limit_decide_once.idempotency_key AND a.expires_at = answer.expires_at;
  END IF;
  clock := public.rate_limit_clock();
  INSERT INTO public.rate_limit_answers (idempotency_key, asked, ready_at, item_values, expires_at)
  VALUES (rate_limit_decide_once.idempotency_key, asked, clock + call_waits[1], item_values, clock + keep)
  ON CONFLICT ON CONSTRAINT rate_limit_answers_pkey DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'could not serialize access to an idempotency key'
      USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
  END IF;
END
$function$;

CREATE OR REPLACE FUNCTION public.rate_limit_prune_answers(step integer DEFAULT 1000)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_indexscan = on
SET enable_nestloop = on
SET enable_sort = on
SET jit = off
AS $function$
DECLARE
  clock CONSTANT bigint := public.rate_limit_clock();
  pruned bigint;
BEGIN
  WITH expired AS (
    SELECT a.idempotency_key
    FROM public.rate_limit_answers AS a
    WHERE a.expires_at <= clock
    ORDER BY a.expires_at
    LIMIT step
    FOR UPDATE SKIP LOCKED
  )
  DELETE FROM public.rate_limit_answers AS a
  USING expired AS e
  WHERE a.idempotency_key = e.idempotency_key;
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END
$function$;

REVOKE ALL ON TABLE public.rate_limit_answers FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_decide_once(
  text, bigint, text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[],
  integer[], text[], text[], integer[], integer[], double precision[], integer[],
  text, boolean
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_prune_answers(integer) FROM PUBLIC;
