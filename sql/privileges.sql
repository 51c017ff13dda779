-- Whoever may call these functions may use up any limit: nobody may, until it is granted. The functions run as their
-- owner, so that a role needs EXECUTE only, and can neither read nor change a row by hand.
REVOKE ALL ON TABLE public.rate_limits, public.rate_limits_seen FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_clock() FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_phase(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_flow(double precision, bigint, bigint, double precision, double precision) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_full_at(double precision, bigint, double precision, double precision, double precision)
  FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_taken(
  double precision, bigint, bigint, double precision, double precision, double precision, double precision
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_left_over(double precision, double precision, integer, double precision, double precision)
  FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reserved_wait(
  double precision, bigint, double precision, double precision, double precision, double precision
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_asked(
  text[], double precision[], bigint[], double precision[], double precision[], integer[], text[], text[], integer[],
  double precision[], boolean[], integer[], integer[], text, text
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_validate(
  text, double precision, bigint, double precision, double precision, bigint, integer, integer
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_decide(
  text[], double precision[], bigint[], double precision[], double precision[], bigint[], integer[], integer[], text[],
  text[], integer[], integer[], double precision[], text[], boolean[], integer[], integer[], bigint[], boolean
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_take(
  text, text, double precision, double precision, double precision, double precision, integer, integer, boolean,
  double precision
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_held(text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_single(
  text, text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_check(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_enforce(
  text, text, text, double precision, interval, double precision, double precision, boolean, double precision,
  interval, integer, integer, timestamp with time zone
) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reset(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_reset(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION public.rate_limit_prune(integer, text, text, integer) FROM PUBLIC;
