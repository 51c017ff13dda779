-- Looks up the jobs that have the unique ids of an enqueue's duplicates, and sets what the enqueue returns for these.
--
--   line_*      the group and the priority of each job; of a duplicate, those of the existing job, or no group if that job waits
--               no longer
--   job_states  the states of the existing jobs
CREATE OR REPLACE FUNCTION rate_limit._existing_jobs(
  queue_name text, job_unique_ids text[], clock bigint, INOUT job_outcomes text[], INOUT job_ids bigint[],
  INOUT job_run_ats bigint[], INOUT job_waits bigint[], INOUT line_keys text[], INOUT line_priorities integer[],
  OUT job_states text[]
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $function$
DECLARE
  other record;
BEGIN
  job_states := array_fill(NULL::text, ARRAY[cardinality(job_unique_ids)]);
  FOR nth IN 1 .. cardinality(job_unique_ids) LOOP
    CONTINUE WHEN job_outcomes[nth] <> 'duplicate';
    SELECT j.id, j.run_at, j.key, j.priority, j.state INTO other
    FROM rate_limit.jobs AS j
    WHERE j.queue = queue_name AND j.unique_id = job_unique_ids[nth] AND j.state NOT IN ('dead', 'cancelled');
    IF FOUND THEN
      job_ids[nth] := other.id;
      job_run_ats[nth] := other.run_at;
      job_waits[nth] := greatest(other.run_at - clock, 0);
      job_states[nth] := other.state;
      line_keys[nth] := CASE WHEN other.state IN ('scheduled', 'available') THEN other.key END;
      line_priorities[nth] := other.priority;
    ELSE
      RAISE EXCEPTION 'the job that had the unique id of job % of this call has just ended', nth
        USING ERRCODE = 'serialization_failure', HINT = 'Enqueue again.';
    END IF;
  END LOOP;
END
$function$;
