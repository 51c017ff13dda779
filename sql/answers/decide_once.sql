-- Decides one call like _decide, and stores its answer under the caller's idempotency key for `keep` microseconds.
-- A later call with the same key takes nothing and returns the stored answer. The outcome is `decided`, `repeated`, or
-- `mismatched` (without an answer) if the key was used for a different call. A denial takes nothing and is not stored.
CREATE OR REPLACE FUNCTION rate_limit._decide_once(
  idempotency_key text, keep bigint, limit_kinds text[], limit_rates double precision[], limit_periods bigint[],
  limit_capacities double precision[], limit_max_reserved double precision[], limit_starts bigint[], limit_resolutions integer[],
  limit_shards integer[], bucket_names text[], bucket_keys text[], item_buckets integer[], item_limits integer[],
  item_counts double precision[], call_sizes integer[], call_op text, call_reserve boolean, OUT outcome text,
  OUT call_admitted integer[], OUT call_waits bigint[], OUT item_refused boolean[], OUT item_values double precision[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_indexscan = on SET enable_nestloop = on
SET enable_sort = on SET jit = off SET extra_float_digits = 3 -- So that the hash of a call is the same for every client.
AS $function$
#variable_conflict use_variable
DECLARE
  -- The hash leaves out the limits: they may change between a call and its repetition.
  asked CONSTANT bigint := hashtextextended(
    ROW(call_op, call_reserve, bucket_names, bucket_keys, item_buckets, item_counts)::text COLLATE "C", 0
  );
  clock bigint;
  answer rate_limit.answers;
BEGIN
  IF NOT coalesce(octet_length(idempotency_key) BETWEEN 1 AND 255, false) THEN
    RAISE EXCEPTION 'invalid_idempotency_key: the idempotency key %; 1 to 255 bytes are allowed',
      coalesce('has ' || octet_length(idempotency_key) || ' bytes', 'is NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give each request a key of its own, of 1 to 255 bytes.';
  END IF;
  IF (keep > 0) IS NOT TRUE THEN
    RAISE EXCEPTION 'invalid_idempotency_key: keep is %, not 1 or more', coalesce(keep::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the time to keep the answer in microseconds, 1 or more.';
  END IF;
  LOOP
    SELECT a.*
    INTO answer
    FROM rate_limit.answers AS a
    WHERE a.idempotency_key = _decide_once.idempotency_key;
    clock := rate_limit._clock();
    IF answer.expires_at > clock THEN
      IF answer.asked <> asked THEN
        outcome := 'mismatched';
        RETURN;
      END IF;
      outcome := 'repeated';
      call_admitted := ARRAY[1];
      -- The time of a reservation stays the same; the wait for it gets shorter.
      call_waits := ARRAY[CASE WHEN answer.ready_at IS NOT NULL THEN greatest(answer.ready_at - clock, 0) END];
      item_refused := array_fill(false, ARRAY[cardinality(answer.item_values)]);
      item_values := answer.item_values;
      RETURN;
    END IF;
    IF outcome = 'decided' THEN
      RETURN; -- The call was denied.
    END IF;

    SELECT d.call_admitted, d.call_waits, d.item_refused, d.item_values
    INTO call_admitted, call_waits, item_refused, item_values
    FROM rate_limit._decide(
      limit_kinds, limit_rates, limit_periods, limit_capacities, limit_max_reserved, limit_starts, limit_resolutions,
      limit_shards, bucket_names, bucket_keys, item_buckets, item_limits, item_counts, ARRAY[call_op],
      ARRAY[call_reserve], call_sizes, NULL, NULL
    ) AS d;
    outcome := 'decided';
    EXIT WHEN coalesce(call_admitted[1], 1) = 1;
    -- Under READ COMMITTED this may have waited for an earlier call with the same key, which took the last tokens. So after a
    -- denial, look for a stored answer once more.
  END LOOP;
  IF answer.expires_at IS NOT NULL THEN -- The stored answer has expired.
    DELETE FROM rate_limit.answers AS a
    WHERE a.idempotency_key = _decide_once.idempotency_key AND a.expires_at = answer.expires_at;
  END IF;
  -- Every transaction takes the tokens first and then writes the answer. A concurrent call with the same key waits here, or for
  -- the tokens; its transaction is then retried and finds the answer.
  clock := rate_limit._clock();
  INSERT INTO rate_limit.answers (idempotency_key, asked, ready_at, item_values, expires_at)
  VALUES (_decide_once.idempotency_key, asked, clock + call_waits[1], item_values, clock + keep)
  ON CONFLICT ON CONSTRAINT answers_pkey DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'could not serialize access to an idempotency key'
      USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
  END IF;
END
$function$;
