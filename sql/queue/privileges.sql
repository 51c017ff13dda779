-- As for the limits: nobody, until it is granted. The functions run as their owner.
REVOKE ALL ON TABLE public.rate_limit_jobs, public.rate_limit_groups, public.rate_limit_workers FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_ring(text, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_lag(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_in_line(
  text, text, bigint, bigint, integer, text[], text[], double precision[], integer[], text[], double precision[], bigint[],
  double precision[], bigint[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_enqueue(
  text, text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], integer[],
  text[], text[], integer[], integer[], double precision[], integer[], text[], text[], integer[], text[], bigint[],
  bigint[], integer[], boolean
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_claim(
  text, text, integer, bigint, bigint, bigint, text[], text[], double precision[], bigint[], double precision[],
  bigint[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_job_again(
  bigint[], integer[], text, bigint, text, text[], text[], double precision[], bigint[], double precision[], bigint[],
  integer[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_again(
  public.rate_limit_jobs, text[], text[], double precision[], bigint[], double precision[], bigint[], integer[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_claimed_jobs(bigint[], integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_claimed(bigint[], integer[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_unpay(
  public.rate_limit_jobs, text[], text[], double precision[], bigint[], double precision[], bigint[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_correct_started(
  text[], text[], double precision[], double precision[], bigint[], text[], text[], double precision[], bigint[],
  double precision[], bigint[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_correct(
  text, text, double precision, text[], text[], double precision[], bigint[], double precision[], bigint[],
  integer[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_job_done(
  bigint, integer, text[], text[], double precision[], bigint[], double precision[], bigint[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_job_extend(bigint[], integer[], bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_jobs_lapsed(text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_job_cancel(
  text, bigint, text[], text[], double precision[], bigint[], double precision[], bigint[], integer[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_job_settle(
  text, bigint, text, text, double precision, text[], text[], double precision[], bigint[], double precision[],
  bigint[], integer[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_job_requeue(
  text, bigint, text[], text[], double precision[], bigint[], double precision[], bigint[], integer[]
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_jobs_prune(text, bigint, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_dead_jobs_prune(text, bigint, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_jobs_discard(text, bigint[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_queue_gauges(text) FROM PUBLIC;
