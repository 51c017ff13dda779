-- Triggers that reject rows above a limit. The limit applies to every statement that writes to the table. All names have their
-- schemas, and the functions their own search_path: pg_restore and the worker that applies a subscription have an empty one. To
-- restore rows into these tables, use pg_restore --data-only --disable-triggers.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/trigger.sql
--
-- Run it in a migrated database (pg-limiter migrate), as a superuser. The file is one transaction, which ends with ROLLBACK.
-- To keep the tables and triggers, replace ROLLBACK with COMMIT.
BEGIN;

-- app_owner owns the tables and the triggers, and may call the limiter. The application connects as app_role, which may
-- write rows, but can neither call the limiter nor change a bucket directly.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_owner') THEN CREATE ROLE app_owner; END IF;
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_role') THEN CREATE ROLE app_role; END IF;
END $$;
CREATE SCHEMA app AUTHORIZATION app_owner;
GRANT USAGE ON SCHEMA app TO app_role;
GRANT USAGE ON SCHEMA rate_limit TO app_owner;
GRANT EXECUTE ON FUNCTION rate_limit.enforce_with, rate_limit.limit_all_with TO app_owner;

SET LOCAL ROLE app_owner;

-- Two posts an hour for each author. The trigger is AFTER INSERT, so a row that ON CONFLICT DO NOTHING skips costs nothing.
-- The function is SECURITY DEFINER, so it has its owner's privileges.
CREATE TABLE app.posts (author text NOT NULL, body text NOT NULL, UNIQUE (author, body));
GRANT SELECT, INSERT ON app.posts TO app_role;

CREATE FUNCTION app.limit_posts() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM rate_limit.enforce_with('posts', NEW.author, kind => 'token_bucket', rate => 2, period => '1 hour');
  RETURN NULL;
END $$;

-- Otherwise, other roles could attach it to their own tables, and use up the limits of any author.
REVOKE EXECUTE ON FUNCTION app.limit_posts FROM PUBLIC;

CREATE TRIGGER limit_posts AFTER INSERT ON app.posts FOR EACH ROW EXECUTE FUNCTION app.limit_posts();

-- 100 events a minute for each source. A statement inserts many events, so the trigger makes one call for each source
-- instead of one for each row. It calls in a fixed order of the sources, so two statements cannot deadlock.
CREATE TABLE app.events (source text NOT NULL, nth integer NOT NULL);
GRANT SELECT, INSERT ON app.events TO app_role;

CREATE FUNCTION app.limit_events() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  one record;
BEGIN
  FOR one IN SELECT w.source, count(*) AS events FROM written AS w GROUP BY w.source ORDER BY w.source COLLATE "C" LOOP
    PERFORM rate_limit.enforce_with('events', one.source, kind => 'token_bucket', rate => 100, period => '1 minute',
      count => one.events);
  END LOOP;
  RETURN NULL;
END $$;

REVOKE EXECUTE ON FUNCTION app.limit_events FROM PUBLIC;

CREATE TRIGGER limit_events AFTER INSERT ON app.events REFERENCING NEW TABLE AS written
  FOR EACH STATEMENT EXECUTE FUNCTION app.limit_events();

-- Two messages an hour for each author and three for each team, decided together: a message is charged to both limits or to
-- neither.
CREATE TABLE app.messages (author text NOT NULL, team text NOT NULL);
GRANT SELECT, INSERT ON app.messages TO app_role;

CREATE FUNCTION app.limit_messages() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  SELECT d.*
  INTO decision
  FROM rate_limit.limit_all_with(jsonb_build_array(
    jsonb_build_object('name', 'author', 'key', NEW.author, 'kind', 'token_bucket', 'rate', 2, 'period', '1 hour'),
    jsonb_build_object('name', 'team', 'key', NEW.team, 'kind', 'token_bucket', 'rate', 3, 'period', '1 hour')
  )) AS d;
  IF NOT decision.ok THEN
    RAISE EXCEPTION 'rate limit exceeded: %', array_to_string(decision.denied_by, ', ')
      USING
        ERRCODE = 'RL429',
        DETAIL = format('Retry after %s seconds.', extract(epoch FROM decision.retry_after)::numeric(30, 6));
  END IF;
  RETURN NULL;
END $$;

REVOKE EXECUTE ON FUNCTION app.limit_messages FROM PUBLIC;

CREATE TRIGGER limit_messages AFTER INSERT ON app.messages FOR EACH ROW EXECUTE FUNCTION app.limit_messages();

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

SELECT 'three posts' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1'), ('bob', '1'), ('ann', '2')$$);
SELECT 'a third post by ann, and one by bob' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('bob', '2'), ('ann', '3')$$);
SELECT 'the post by bob alone: his token was rolled back' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('bob', '2')$$);
SELECT 'a post by ann that exists already' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.posts VALUES ('ann', '1') ON CONFLICT DO NOTHING$$);
SELECT '90 events' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.events SELECT 'sensor', n FROM generate_series(1, 90) AS n$$);
SELECT '90 more events' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.events SELECT 'sensor', n FROM generate_series(91, 180) AS n$$);
SELECT 'more events than the capacity' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.events SELECT 'other', n FROM generate_series(1, 101) AS n$$);
SELECT 'two messages by ann' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.messages VALUES ('ann', 'red'), ('ann', 'red')$$);
SELECT 'a third message by ann' AS what, * FROM pg_temp.attempt($$INSERT INTO app.messages VALUES ('ann', 'red')$$);
SELECT 'one by bob in the same team' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.messages VALUES ('bob', 'red')$$);
SELECT 'another by bob, which exceeds the limit of the team' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.messages VALUES ('bob', 'red')$$);
SELECT 'the same in another team: bob was not charged' AS what, *
FROM pg_temp.attempt($$INSERT INTO app.messages VALUES ('bob', 'blue')$$);
SELECT 'a reset' AS what, * FROM pg_temp.attempt($$SELECT rate_limit.reset('posts', 'ann')$$);
SELECT 'a direct change to a bucket' AS what, * FROM pg_temp.attempt($$UPDATE rate_limit.rate_limits SET value = 100$$);

SELECT 'posts by ' || author AS what, count(*) FROM app.posts GROUP BY author ORDER BY author;
SELECT 'events' AS what, count(*) FROM app.events;
SELECT 'messages' AS what, count(*) FROM app.messages;

ROLLBACK;
