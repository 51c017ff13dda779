-- Returns whether the numbers of a limit are in range. NaN and infinity sort above all other numbers. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._in_range(rate double precision, period double precision, capacity double precision)
RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT rate BETWEEN 1e-6 AND 1e13 AND period BETWEEN 1 AND 3155760000000000 AND capacity BETWEEN 0 AND 1e13
$function$;

-- Returns whether so many tokens can be added to a bucket of this capacity and taken from it. A double precision number has 53
-- bits: within these bounds, the rounding of a call stays below a billionth of what it takes, and a whole number is never
-- rounded. NaN is larger than every other number. The library checks the same: see src/limit/exact.rs. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._is_exact(tokens double precision, capacity double precision) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT tokens BETWEEN 1e-6 AND 1e13 AND (tokens * 1e9 >= capacity OR tokens = pg_catalog.floor(tokens))
$function$;

-- Returns the rule for numbers of tokens, for messages.
CREATE OR REPLACE FUNCTION rate_limit._exact_values(tokens double precision, capacity double precision) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT CASE
    WHEN tokens BETWEEN 1e-6 AND 1e13 AND capacity / 1e9 <= 1e13
    THEN 'a whole number or at least ' || capacity / 1e9 || ' (a billionth of the capacity ' || capacity || ')'
    ELSE 'a number from 1e-6 to 1e13'
  END
$function$;

-- Returns the largest rounding error of a balance, in tokens. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._tolerance(capacity double precision, balance double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT 1e-9 + 1e-14 * greatest(capacity, abs(balance))
$function$;

-- Returns how far a reservation of `count` tokens may take a balance below 0. Beyond 1e13 tokens, and a billion times a count
-- that is no whole number, the count would be rounded. Inlined.
CREATE OR REPLACE FUNCTION rate_limit._most_debt(max_reserved double precision, count double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $function$
  SELECT least(max_reserved, 1e13, CASE WHEN count <> pg_catalog.floor(count) THEN count * 1e9 END)
$function$;
