-- As for the limits: nobody, until it is granted. The functions run as their owner.
REVOKE ALL ON TABLE public.rate_limit_answers FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_decide_once(
  text, bigint, text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[],
  integer[], text[], text[], integer[], integer[], double precision[], integer[],
  text, boolean
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_prune_answers(integer) FROM PUBLIC;
