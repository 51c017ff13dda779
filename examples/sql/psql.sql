-- Use limits from psql, or from any language with a PostgreSQL driver.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/psql.sql
--
-- Run it in a migrated database (pg-limiter migrate), as the role that migrated it. The file is one transaction, which ends
-- with ROLLBACK and leaves nothing behind.
BEGIN;

-- A role needs USAGE on the schema, EXECUTE on the functions that it calls, and no other privilege:
--   GRANT USAGE ON SCHEMA rate_limit TO app_role;
--   GRANT EXECUTE ON FUNCTION rate_limit.limit_with, rate_limit.limit_all_with, rate_limit.check_with, rate_limit.check_all_with,
--     rate_limit.charge_all_with, rate_limit.credit_all_with, rate_limit.enforce_with, rate_limit.reset(text, text),
--     rate_limit.acquire_with, rate_limit.release, rate_limit.renew, rate_limit.block, rate_limit.unblock,
--     rate_limit.is_blocked TO app_role;

-- Take a token. The result is a row: `ok`, `retry_after` (NULL if there is no need to wait) and `value`, the tokens left. A
-- denial is not an error, and takes nothing.
SELECT ok, retry_after, value
FROM rate_limit.limit_with('deploy', 'shop', kind => 'token_bucket', rate => 2, period => '10 minutes');
SELECT ok, retry_after, value
FROM rate_limit.limit_with('deploy', 'shop', kind => 'token_bucket', rate => 2, period => '10 minutes');
SELECT ok, retry_after, value
FROM rate_limit.limit_with('deploy', 'shop', kind => 'token_bucket', rate => 2, period => '10 minutes');

-- Check without taking. Would two be allowed? How many are left? (Use a count of 0.)
SELECT ok, retry_after FROM rate_limit.check_with('deploy', 'shop', 'token_bucket', 2, '10 minutes', count => 2);
SELECT round(value) AS left FROM rate_limit.check_with('deploy', 'shop', 'token_bucket', 2, '10 minutes', count => 0);

-- Reset a key: its bucket is full again.
SELECT rate_limit.reset('deploy', 'shop') AS rows_gone;
SELECT ok, value FROM rate_limit.limit_with('deploy', 'shop', 'token_bucket', 2, '10 minutes', count => 2);

-- Reserve tokens that are not available yet. They are available after `retry_after`: wait that long, then go ahead.
SELECT ok, retry_after, value
FROM rate_limit.limit_with('mails', 'ann', 'token_bucket', 6, '1 minute', capacity => 1, reserve => true);
SELECT ok, retry_after <= '10 seconds' AS within_10_s, round(value) AS owed
FROM rate_limit.limit_with('mails', 'ann', 'token_bucket', 6, '1 minute', capacity => 1, reserve => true);

-- Decide at another time: `at` replaces the clock. These windows begin at 07:00 UTC.
SELECT ok, retry_after
FROM rate_limit.limit_with('report', 'ann', 'fixed_window', 1, '1 day', start => '7 hours', at => '2026-01-01 08:00Z');
SELECT ok, retry_after
FROM rate_limit.limit_with('report', 'ann', 'fixed_window', 1, '1 day', start => '7 hours', at => '2026-01-01 09:00Z');
SELECT ok, retry_after
FROM rate_limit.limit_with('report', 'ann', 'fixed_window', 1, '1 day', start => '7 hours', at => '2026-01-02 07:00Z');

-- Take several limits together, all or none: pass them as a jsonb array. One limit denies the second call, so neither limit
-- is charged.
SELECT ok, retry_after, denied_by, jsonb_array_length(limits) AS limits
FROM rate_limit.limit_all_with('[
  {"name": "per_user", "key": "bob", "kind": "token_bucket", "rate": 10, "period": "1 minute"},
  {"name": "per_team", "key": "red", "kind": "token_bucket", "rate": 5, "period": "1 hour", "count": 4}
]');
SELECT ok, retry_after <= '1 hour' AS within_1_h, denied_by, l ->> 'name' AS name, l ->> 'denied' AS denied
FROM rate_limit.limit_all_with('[
  {"name": "per_user", "key": "bob", "kind": "token_bucket", "rate": 10, "period": "1 minute"},
  {"name": "per_team", "key": "red", "kind": "token_bucket", "rate": 5, "period": "1 hour", "count": 4}
]') AS d, jsonb_array_elements(d.limits) AS l;

-- Take a slot of a concurrency limit together with a token, and leave 5 tokens to calls of a higher priority. Without a
-- lease_id, one is drawn. Renew the lease in time, and release it in the end: others may have the slot then. The token stays
-- taken. (acquire_with takes slots alone.)
SELECT ok, limits -> 0 ->> 'lease_id' AS lease_id
FROM rate_limit.limit_all_with('[
  {"name": "running", "key": "ann", "kind": "concurrency", "capacity": 2, "lease": "1 minute", "lease_id": 4711},
  {"name": "starts", "key": "ann", "kind": "token_bucket", "rate": 10, "period": "1 hour", "leave": 5}
]');
SELECT rate_limit.renew('running', 'ann', 4711, '5 minutes') AS renewed;
SELECT rate_limit.release('running', 'ann', 4711) AS released;

-- Block a key of a gate. The gate denies every call that names it, and nothing is taken from the other limits.
SELECT rate_limit.block('banned', 'eve', '1 hour') AS rest;
SELECT ok, denied_by
FROM rate_limit.limit_all_with('[
  {"name": "banned", "key": "eve", "kind": "gate"},
  {"name": "per_user", "key": "eve", "kind": "token_bucket", "rate": 10, "period": "1 minute"}
]');
SELECT rate_limit.unblock('banned', 'eve') AS was_blocked;

-- A quota for each month of the calendar. In February the next month begins after 36 hours here.
SELECT ok, retry_after FROM rate_limit.limit_with('quota', 'ann', 'calendar_window', 1, '1 month', at => '2026-02-27 12:00Z');
SELECT ok, retry_after FROM rate_limit.limit_with('quota', 'ann', 'calendar_window', 1, '1 month', at => '2026-02-27 12:00Z');

-- enforce_with raises an error instead of returning a denial. The error rolls back what the transaction took before.
-- Here a block catches it, so that the file continues.
DO $$
DECLARE
  detail text;
BEGIN
  PERFORM rate_limit.enforce_with('per_user', 'ann', 'token_bucket', 10, '1 minute');
  PERFORM rate_limit.enforce_with('per_org', 'acme', 'token_bucket', 5, '1 hour', count => 5);
  PERFORM rate_limit.enforce_with('per_org', 'acme', 'token_bucket', 5, '1 hour');
EXCEPTION WHEN SQLSTATE 'RL429' THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RAISE NOTICE '%: %', SQLERRM, detail;
END $$;
SELECT count(*) AS taken FROM rate_limit.rate_limits WHERE key IN ('ann', 'acme') AND name LIKE 'per%';

-- List the buckets: each stores two numbers. (Only the owner can read the table.)
SELECT name, key, round(value) AS value, to_timestamp(ts / 1e6) AT TIME ZONE 'UTC' AS at
FROM rate_limit.rate_limits ORDER BY name, key;

ROLLBACK;
