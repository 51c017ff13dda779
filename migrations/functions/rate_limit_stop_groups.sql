-- rate_limit_stop_groups(text, bigint, rate_limit_groups[], bigint[], bigint[], bigint[], bigint[])
-- SHA-256: b403086694ef3e3e36a1895f0f12a57c50e3ea284d26a56e75ff0d68ba9694c5

-- Puts the due jobs that a claim cannot start into the lines of their groups, where they are not read before their groups
-- are. Returns whether there were any.
--
--   groups       the groups that the claim has locked, as they were; no job could start in a group with a not_before after
--                `horizon`
--   due_ids      the due jobs that the claim has locked
--   stopped_ids  the jobs that the limits denied, one of each group that stops; stopped_ats: when to claim from the group again
CREATE OR REPLACE FUNCTION public.rate_limit_stop_groups(
  queue_name text, horizon bigint, groups public.rate_limit_groups[], due_ids bigint[], started_ids bigint[],
  stopped_ids bigint[], stopped_ats bigint[]
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  shut_keys CONSTANT text[] := ARRAY(SELECT g.key FROM unnest(groups) AS g WHERE g.not_before > horizon);
  stopped_keys CONSTANT text[] := ARRAY(SELECT j.key FROM public.rate_limit_jobs AS j WHERE j.id = ANY (stopped_ids));
  has_parked boolean;
BEGIN
  UPDATE public.rate_limit_jobs AS j
  SET state = 'available'
  WHERE j.id = ANY (due_ids) AND j.id <> ALL (started_ids) AND j.state = 'scheduled'
    AND j.key = ANY (shut_keys || stopped_keys);
  has_parked := FOUND;
  UPDATE public.rate_limit_groups AS g
  SET has_line = true, not_before = s.at, lag = greatest(s.at - j.run_at, 0), refused_job = j.id
  FROM unnest(stopped_ids, stopped_ats) AS s (id, at)
  JOIN public.rate_limit_jobs AS j ON j.id = s.id
  WHERE g.queue = queue_name AND g.key = j.key;
  UPDATE public.rate_limit_groups AS g
  SET has_line = true
  WHERE g.queue = queue_name AND g.key = ANY (shut_keys) AND NOT g.has_line;
  UPDATE public.rate_limit_groups AS g
  SET has_line = false, lag = 0
  FROM unnest(groups) AS o
  WHERE g.queue = queue_name AND g.key = o.key AND o.has_line AND o.key <> ALL (shut_keys || stopped_keys)
    AND NOT EXISTS (
      SELECT
      FROM public.rate_limit_jobs AS j
      WHERE j.queue = queue_name AND j.key = g.key AND j.state = 'available' AND j.id <> ALL (started_ids)
    );
  RETURN has_parked;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_stop_groups IS 'Puts due jobs that cannot start yet into the lines of their groups.';
