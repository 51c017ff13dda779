-- rate_limit_validate(text, double precision, bigint, double precision, double precision, bigint, integer, integer)
-- SHA-256: 733ecf80f6d5dda3ef1a3a1d9919cf9af7ce0e0f623adbe84c14b37949e19360

CREATE OR REPLACE FUNCTION public.rate_limit_validate(
  kind text, rate double precision, period bigint, capacity double precision, max_reserved double precision, start bigint,
  resolution integer, shards integer
) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $function$
DECLARE
  reason CONSTANT text :=
    public.rate_limit_invalid(kind, rate, period, capacity, max_reserved, start, resolution, shards);
BEGIN
  IF reason IS NOT NULL THEN
    RAISE EXCEPTION 'invalid_limit: %', reason
      USING ERRCODE = 'invalid_parameter_value', HINT = 'See the kinds of limits and their options.';
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_validate IS 'Raises an error if the options of a limit are not valid.';
