-- A row-level-security policy that limits: for those who keep their rules in policies. A trigger (trigger.sql) is the
-- better place otherwise: it also holds for superusers and BYPASSRLS, to whom no policy applies, and it counts the rows
-- that were written, where a policy counts those that were to be.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/row_level_security.sql
--
-- On a migrated database (pg-limiter migrate), as a superuser. All of it is in one transaction, which ends with
-- ROLLBACK: with COMMIT there instead, it stays.
BEGIN;

-- app_owner owns the table and its policies, and may ask the limiter. app_role, as which the application connects, may
-- write rows within the policies.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_owner') THEN CREATE ROLE app_owner; END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_role') THEN CREATE ROLE app_role; END IF;
END $$;
CREATE SCHEMA app AUTHORIZATION app_owner;
GRANT USAGE ON SCHEMA app TO app_role;
GRANT EXECUTE ON FUNCTION public.rate_limit_enforce TO app_owner;

SET LOCAL ROLE app_owner;

-- FORCE: for the owner, too.
CREATE TABLE app.posts (author text NOT NULL, body text NOT NULL UNIQUE);
ALTER TABLE app.posts ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
GRANT SELECT, INSERT ON app.posts TO app_role;

-- Three posts an hour for each user, whom the application names in each transaction: SET LOCAL app.user_id = 'ann'.
--
-- It raises, because a policy that is merely false tells nobody when to come back. It is VOLATILE (as every function is
-- that is not said to be otherwise), because it is to be called for each row. It takes no argument: whoever may write a
-- row may also call it, and is to use up nobody else's limit.
CREATE FUNCTION app.may_post() RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM public.rate_limit_enforce('posts', current_setting('app.user_id'), kind => 'token_bucket', rate => 3,
    period => '1 hour');
  RETURN true;
END $$;
REVOKE EXECUTE ON FUNCTION app.may_post FROM PUBLIC;
GRANT EXECUTE ON FUNCTION app.may_post TO app_role;

CREATE POLICY read ON app.posts FOR SELECT USING (true);
CREATE POLICY own_posts ON app.posts FOR INSERT WITH CHECK (author = current_setting('app.user_id', true));

-- The limit is a policy of its own, with nothing else in it: in which order the parts of one expression are looked at,
-- and which are left out, is not promised. And RESTRICTIVE, so that it holds whatever the others allow; of permissive
-- ones, one is enough. Not in USING, which is evaluated for rows that are read, as often as the planner likes. And not
-- as `(SELECT app.may_post())`, which is good advice for other policies: that is evaluated once a statement, however
-- many rows it writes.
CREATE POLICY posts_are_limited ON app.posts AS RESTRICTIVE FOR INSERT WITH CHECK (app.may_post());

-- What the application sees. `attempt` is for this file only: it shows an error where the application would get it.
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

SELECT 'four posts in one statement, and three are allowed' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1'), ('ann', '2'), ('ann', '3'), ('ann', '4')$$);
SELECT 'two of them: what was refused was not charged' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1'), ('ann', '2')$$);
SELECT 'one as bob' AS what, * FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('bob', '3')$$);
SELECT 'one that is there already: the policy counts it' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1') ON CONFLICT DO NOTHING$$);
SELECT 'so there is none left' AS what, * FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '3')$$);
SELECT 'the limiter by hand' AS what, *
FROM pg_temp.attempt($$SELECT rate_limit_enforce('posts', 'bob', 'token_bucket', 3, '1 hour')$$);
SET LOCAL app.user_id = 'bob';
SELECT 'bob has a limit of his own' AS what, * FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('bob', '3')$$);
RESET ROLE;
SET LOCAL ROLE app_owner;
SELECT 'the owner, in the name of bob' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts SELECT 'bob', n::text FROM generate_series(10, 12) AS n$$);
SET LOCAL ROLE app_role;

SELECT 'posts of ' || author AS what, count(*) FROM app.posts GROUP BY author ORDER BY author;

ROLLBACK;
