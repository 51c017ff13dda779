-- rate_limit_grid(text, bigint, bigint, text, text)
-- SHA-256: f815c762e12e41f069dbe198890fdff204d6434bec58d0c4a94b65034264cb8b

-- The kinds of limits, each with its file in kinds/: which expression of a kind answers which question. A new kind adds a line
-- to each of these functions, and nothing elsewhere.
--
-- A row is (value, ts, earlier_counts). `now` is not before `ts`: a clock that steps back takes nothing. A kind
-- ignores the arguments that it does not need.

-- Returns where the grid of windows begins: for a limit with `start` there, or else at a place that depends on the bucket only.
CREATE OR REPLACE FUNCTION public.rate_limit_grid(kind text, start bigint, period bigint, bucket_name text, bucket_key text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind
    WHEN 'fixed_window' THEN coalesce(start, public.rate_limit_phase(bucket_name, bucket_key))
    WHEN 'sliding_window' THEN coalesce(start % period, 0)
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_grid IS 'Returns where the windows of a limit begin; inlined.';
