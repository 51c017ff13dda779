-- rate_limit_lag(text, text)
-- SHA-256: 67a5fcde6bec20a16973dd7171394c23f2078d1c866a49aae1b754d622ba7bc8

-- Returns how late the line of a group is, in microseconds. Kept for one release beside rate_limit_in_line.
CREATE OR REPLACE FUNCTION public.rate_limit_lag(queue_name text, job_key text) RETURNS bigint LANGUAGE plpgsql STABLE
AS $function$
BEGIN
  RETURN coalesce((
    SELECT g.lag
    FROM public.rate_limit_groups AS g
    WHERE g.queue = queue_name AND g.key = job_key AND g.has_line
  ), 0);
END
$function$;
COMMENT ON FUNCTION public.rate_limit_lag IS
  'Returns how late the line of a group is, in microseconds.';
