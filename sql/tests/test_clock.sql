-- The clock of a test's schema, in place of the one in clock.sql: the server's time plus the last value of a sequence, in
-- microseconds. `TestClock` installs it. A sequence has no snapshots: all sessions see an advance at once, even within a
-- transaction, it never rolls back, and reading it causes no conflicts.
CREATE OR REPLACE FUNCTION rate_limit._clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $function$
  SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint
    + coalesce(pg_catalog.pg_sequence_last_value($name$rate_limit._test_clock$name$), 0)
$function$;
COMMENT ON FUNCTION rate_limit._clock IS 'A TEST CLOCK: the time plus the last value of _test_clock.';
