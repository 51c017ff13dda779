-- rate_limit_ts_after(text, bigint, bigint, bigint, bigint)
-- SHA-256: d26df3d833d2d9e1e9a67eb3e491e5c9d9df2e2ec68c2397c3d1f476695a6285

-- A fixed window may have started before `ts` if its period was made longer. Then `ts` stays, or a shorter period later would
-- grant windows twice.
CREATE OR REPLACE FUNCTION public.rate_limit_ts_after(kind text, ts bigint, now bigint, period bigint, phase bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE kind WHEN 'fixed_window' THEN greatest(ts, public.rate_limit_window_start(now, phase, period)) ELSE now END
$function$;
COMMENT ON FUNCTION public.rate_limit_ts_after IS 'Returns the time of a row after tokens were taken; inlined.';
