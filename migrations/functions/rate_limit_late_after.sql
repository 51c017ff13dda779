-- rate_limit_late_after(integer)
-- SHA-256: d551f2cdb824554ce6322f1b3d0e5fb7ec35971873098a6c5d865e4cce729c9b

-- Returns the microseconds that may pass between the time as of which a call on so many buckets is decided and its last write.
-- A call that takes longer has waited for a lock, and is decided again. Inlined.
CREATE OR REPLACE FUNCTION public.rate_limit_late_after(buckets integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $function$
  SELECT CASE WHEN public.rate_limit_is_distributed() THEN 20000 + 5000 * buckets ELSE 2000 + 50 * buckets END
$function$;
COMMENT ON FUNCTION public.rate_limit_late_after IS 'Returns how late a decision may be written; inlined.';
