-- Returns how many microseconds after the clock was read a decision may still be written. A call that takes longer has waited
-- for a lock, and is decided again. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._late_after(buckets integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $function$
  SELECT CASE WHEN rate_limit._is_distributed() THEN 20000 + 5000 * buckets ELSE 2000 + 50 * buckets END
$function$;

-- Raises an error if the transaction reads a snapshot from before a long wait. `waited` is in microseconds. A gate, or
-- another bucket that a call only reads, must be as fresh as those that it takes from. A shorter time need not be a wait: a
-- session's first call is slow.
CREATE OR REPLACE FUNCTION rate_limit._needs_fresh_reads(waited bigint) RETURNS void LANGUAGE plpgsql STABLE
AS $function$
BEGIN
  IF waited > 100000 AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'could not serialize access to a bucket that is only read'
      USING ERRCODE = 'serialization_failure', HINT = 'Retry the transaction.';
  END IF;
END
$function$;
