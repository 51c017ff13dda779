-- rate_limit_ts_after(text, bigint, bigint, bigint, bigint)
-- SHA-256: 9bb3ae913eb2820bec2e38a6508fda7920d157e63c2557acd49541825f797399

-- A fixed or calendar window may have started before `ts` if its period was made longer. Then `ts` stays, or a shorter period
-- later would grant windows twice.
CREATE OR REPLACE FUNCTION public.rate_limit_ts_after(kind text, ts bigint, now bigint, period bigint, phase bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN kind = 'fixed_window' THEN greatest(ts, public.rate_limit_window_start(now, phase, period))
    WHEN kind IN ('token_bucket', 'sliding_window') THEN now
    ELSE greatest(ts, public.rate_limit_calendar_start(kind, public.rate_limit_calendar_nth(kind, now)))
  END
$function$;
COMMENT ON FUNCTION public.rate_limit_ts_after IS 'Returns the time of a row after tokens were taken; inlined.';
