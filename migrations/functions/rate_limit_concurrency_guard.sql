-- rate_limit_concurrency_guard(text, text, double precision, boolean, double precision, bigint, boolean)
-- SHA-256: 2f72156778ca3a22b7c961be2e470519e09a91538ebfa5f0240a106317796aba

-- Raises an error if a call on a concurrency limit asks for what it cannot do.
CREATE OR REPLACE FUNCTION public.rate_limit_concurrency_guard(
  bucket_name text, op text, count double precision, reserves boolean, capacity double precision, lease bigint, is_held boolean
) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $function$
BEGIN
  IF op NOT IN ('limit', 'check', 'peek', 'reset', 'release', 'renew') OR reserves THEN
    RAISE EXCEPTION 'reserve_unsupported: the concurrency limit "%" cannot %', bucket_name,
      CASE WHEN reserves THEN 'reserve' ELSE op END
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Acquire slots, and release or renew them.';
  ELSIF op IN ('limit', 'release', 'renew') AND NOT coalesce(lease BETWEEN 2 AND 9007199254740991, false) THEN
    RAISE EXCEPTION 'invalid_lease: the lease % of the concurrency limit "%" is not a number from 2 to 9007199254740991',
      coalesce(lease::text, 'NULL'), bucket_name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use rate_limit_acquire, which returns a lease.';
  ELSIF op = 'limit' AND is_held THEN
    RAISE EXCEPTION 'invalid_lease: the lease % of the concurrency limit "%" is already held', lease, bucket_name
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Renew it, or use another number.';
  ELSIF op = 'limit' OR (op = 'check' AND count <> 0) THEN
    IF count < 1 OR count <> floor(count) THEN
      RAISE EXCEPTION 'invalid_count: the count % for the concurrency limit "%" is not a whole number from 1 on', count, bucket_name
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Count whole slots.';
    ELSIF count > capacity THEN
      RAISE EXCEPTION 'count_exceeds_capacity: the count % can never be served by the limit "%", which grants at most %',
        count, bucket_name, capacity
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Lower the count, or raise the capacity.';
    END IF;
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_concurrency_guard IS
  'Raises an error if a call on a concurrency limit asks for what it cannot do.';
