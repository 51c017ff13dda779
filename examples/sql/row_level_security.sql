-- A row-level-security policy that limits inserts. Use it if your rules are policies already; otherwise prefer a trigger
-- (trigger.sql). A trigger also applies to superusers and to roles with BYPASSRLS. It counts the rows that were inserted,
-- while a policy counts the rows that the statement tried to insert.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/row_level_security.sql
--
-- Run it in a migrated database (pg-limiter migrate), as a superuser. The file is one transaction, which ends with ROLLBACK.
-- To keep the table and its policies, replace ROLLBACK with COMMIT.
BEGIN;

-- app_owner owns the table and its policies, and may call the limiter. The application connects as app_role, which may
-- insert the rows that the policies allow.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_owner') THEN CREATE ROLE app_owner; END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_role') THEN CREATE ROLE app_role; END IF;
END $$;
CREATE SCHEMA app AUTHORIZATION app_owner;
GRANT USAGE ON SCHEMA app TO app_role;
GRANT USAGE ON SCHEMA rate_limit TO app_owner;
GRANT EXECUTE ON FUNCTION rate_limit.enforce_with TO app_owner;

SET LOCAL ROLE app_owner;

-- FORCE applies the policies to the table's owner, too.
CREATE TABLE app.posts (author text NOT NULL, body text NOT NULL UNIQUE);
ALTER TABLE app.posts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
GRANT SELECT, INSERT ON app.posts TO app_role;

-- Three posts an hour for each user. The application sets the user in each transaction: SET LOCAL app.user_id = 'ann'.
--
-- The function raises an error, because a policy that is merely false cannot report `retry_after`. It is VOLATILE, which is
-- the default, so that it is called for each row. It takes no argument: every role that may insert a row may also call it,
-- and with an argument it could use up the limit of another user.
CREATE FUNCTION app.may_post() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM rate_limit.enforce_with('posts', current_setting('app.user_id'), kind => 'token_bucket', rate => 3,
    period => '1 hour');
  RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION app.may_post FROM PUBLIC;
GRANT EXECUTE ON FUNCTION app.may_post TO app_role;

CREATE POLICY read ON app.posts FOR SELECT USING (true);
CREATE POLICY own_posts ON app.posts FOR INSERT WITH CHECK (author = current_setting('app.user_id', true));

-- How to write the policy:
--   * Keep the limit in a separate policy: PostgreSQL does not define in which order it evaluates the parts of an
--     expression, and may skip some.
--   * Make it RESTRICTIVE, so that it always applies. With permissive policies, one that allows the row is enough.
--   * Do not put it into USING, which is evaluated for rows that are read, as often as the planner chooses.
--   * Do not write `(SELECT app.may_post())`, although that is good advice for other policies: it is evaluated once for
--     each statement, however many rows the statement inserts.
CREATE POLICY posts_are_limited ON app.posts AS RESTRICTIVE FOR INSERT WITH CHECK (app.may_post());

-- The application's view. `attempt` is for this file only: it returns an error as a row, so that the file continues.
RESET ROLE;
CREATE FUNCTION pg_temp.attempt(statement text, OUT result text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE statement;
  result := 'done';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  result := SQLSTATE || ' ' || SQLERRM;
END $$;
SET LOCAL ROLE app_role;
SET LOCAL app.user_id = 'ann';

SELECT 'four posts in one statement: three are allowed' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1'), ('ann', '2'), ('ann', '3'), ('ann', '4')$$);
SELECT 'two of them: the denied statement was not charged' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1'), ('ann', '2')$$);
SELECT 'a post as bob' AS what, * FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('bob', '3')$$);
SELECT 'a post that exists already: the policy counts it' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1') ON CONFLICT DO NOTHING$$);
SELECT 'one more: no token is left' AS what, * FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '3')$$);
SELECT 'a direct call to the limiter' AS what, *
FROM pg_temp.attempt($$SELECT rate_limit.enforce_with('posts', 'bob', 'token_bucket', 3, '1 hour')$$);
SET LOCAL app.user_id = 'bob';
SELECT 'a post by bob: each user has a separate bucket' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('bob', '3')$$);
RESET ROLE;
SET LOCAL ROLE app_owner;
SELECT 'three posts by the owner, as bob' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts SELECT 'bob', n::text FROM generate_series(10, 12) AS n$$);
SET LOCAL ROLE app_role;

SELECT 'posts by ' || author AS what, count(*) FROM app.posts GROUP BY author ORDER BY author;

ROLLBACK;
