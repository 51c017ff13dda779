-- Limits from psql, or from any language that speaks SQL.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/psql.sql
--
-- On a migrated database (pg-limiter migrate), as the role that migrated it. All of it is in one transaction, which
-- ends with ROLLBACK: nothing stays.
BEGIN;

-- A role that may limit needs EXECUTE on what it calls, and nothing else:
--   GRANT EXECUTE ON FUNCTION rate_limit, rate_limit_all, rate_limit_check, rate_limit_check_all, rate_limit_enforce,
--     rate_limit_reset(text, text) TO app_role;

-- Take a token. The answer is a row: ok, when to come back (NULL: now), and what is left. A denial is no error, and
-- takes nothing.
SELECT ok, retry_after, value FROM rate_limit('deploy', 'shop', kind => 'token_bucket', rate => 2, period => '10 minutes');
SELECT ok, retry_after, value FROM rate_limit('deploy', 'shop', kind => 'token_bucket', rate => 2, period => '10 minutes');
SELECT ok, retry_after, value FROM rate_limit('deploy', 'shop', kind => 'token_bucket', rate => 2, period => '10 minutes');

-- Look without taking: would two be allowed? What is left? (A count of 0.)
SELECT ok, retry_after FROM rate_limit_check('deploy', 'shop', 'token_bucket', 2, '10 minutes', count => 2);
SELECT round(value) AS left FROM rate_limit_check('deploy', 'shop', 'token_bucket', 2, '10 minutes', count => 0);

-- Forget a key: its bucket is full again.
SELECT rate_limit_reset('deploy', 'shop') AS rows_gone;
SELECT ok, value FROM rate_limit('deploy', 'shop', 'token_bucket', 2, '10 minutes', count => 2);

-- Take what is not there yet, and learn when it will be: go ahead after retry_after.
SELECT ok, retry_after, value FROM rate_limit('mails', 'ann', 'token_bucket', 6, '1 minute', capacity => 1, reserve => true);
SELECT ok, retry_after <= '10 seconds' AS within_10_s, round(value) AS owed
FROM rate_limit('mails', 'ann', 'token_bucket', 6, '1 minute', capacity => 1, reserve => true);

-- What would happen at another time? `at` stands for the clock: windows that begin at 07:00 UTC.
SELECT ok, retry_after
FROM rate_limit('report', 'ann', 'fixed_window', 1, '1 day', start => '7 hours', at => '2026-01-01 08:00Z');
SELECT ok, retry_after
FROM rate_limit('report', 'ann', 'fixed_window', 1, '1 day', start => '7 hours', at => '2026-01-01 09:00Z');
SELECT ok, retry_after
FROM rate_limit('report', 'ann', 'fixed_window', 1, '1 day', start => '7 hours', at => '2026-01-02 07:00Z');

-- Several limits, all or none: an array of them, as jsonb. The second call is refused by one limit, and charges neither.
SELECT ok, retry_after, denied_by, jsonb_array_length(limits) AS limits
FROM rate_limit_all('[
  {"name": "per_user", "key": "bob", "kind": "token_bucket", "rate": 10, "period": "1 minute"},
  {"name": "per_team", "key": "red", "kind": "token_bucket", "rate": 5, "period": "1 hour", "count": 4}
]');
SELECT ok, retry_after <= '1 hour' AS within_1_h, denied_by, l ->> 'name' AS name, l ->> 'refused' AS refused
FROM rate_limit_all('[
  {"name": "per_user", "key": "bob", "kind": "token_bucket", "rate": 10, "period": "1 minute"},
  {"name": "per_team", "key": "red", "kind": "token_bucket", "rate": 5, "period": "1 hour", "count": 4}
]') AS d, jsonb_array_elements(d.limits) AS l;

-- rate_limit_enforce raises an error instead of returning a denial, which undoes what was taken before it. In a transaction
-- of your own that is all there is to it; here a block catches it, so that the file goes on.
DO $$
DECLARE
  detail text;
BEGIN
  PERFORM rate_limit_enforce('per_user', 'ann', 'token_bucket', 10, '1 minute');
  PERFORM rate_limit_enforce('per_org', 'acme', 'token_bucket', 5, '1 hour', count => 5);
  PERFORM rate_limit_enforce('per_org', 'acme', 'token_bucket', 5, '1 hour');
EXCEPTION WHEN SQLSTATE 'RL429' THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RAISE NOTICE '%: %', SQLERRM, detail;
END $$;
SELECT count(*) AS taken FROM rate_limits WHERE key IN ('ann', 'acme') AND name LIKE 'per%';

-- What there is: two numbers a bucket. (For its owner: nobody else can read the table.)
SELECT name, key, round(value) AS value, to_timestamp(ts / 1e6) AT TIME ZONE 'UTC' AS at FROM rate_limits ORDER BY name, key;

ROLLBACK;
