-- rate_limit_validate(text, double precision, bigint, double precision, double precision, bigint, integer, integer)
-- SHA-256: 244c40d80b1e0fc10a0074ef406cfc273eb5f102c686927fdcd05bc8911ca42e

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
      USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a value that the message allows, and no options of other kinds.';
  END IF;
END
$function$;
COMMENT ON FUNCTION public.rate_limit_validate IS 'Raises an error if the options of a limit are not valid.';
