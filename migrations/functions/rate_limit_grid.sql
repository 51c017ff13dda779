-- rate_limit_grid(text, bigint, bigint, text, text)
-- SHA-256: f815c762e12e41f069dbe198890fdff204d6434bec58d0c4a94b65034264cb8b

-- The kinds of limits. Each kind has a file in kinds/; the functions here select the expression of the kind. CONTRIBUTING.md
-- ("Add a kind of limit") lists the other places that depend on the kind.
--
-- A row is (value, ts, earlier_counts). `now` is never before `ts`, so a clock that steps back removes no tokens. A kind
-- ignores the arguments that it does not need. The kind of a calendar window holds its calendar; its functions return NULL for
-- any other kind.

-- Returns the phase of the windows: `start` if the limit has one, or else a phase that depends only on the kind and the bucket.
CREATE OR REPLACE FUNCTION public.rate_limit_grid(kind text, start bigint, period bigint, bucket_name text, bucket_key text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'fixed_window' THEN coalesce(start, public.rate_limit_phase(bucket_name, bucket_key))
    WHEN 'sliding_window' THEN coalesce(start % period, 0)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_grid IS 'Returns where the windows of a limit begin; inlined.';
