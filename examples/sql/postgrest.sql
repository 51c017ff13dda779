-- Limits behind PostgREST (and Supabase): 429 with Retry-After, for signed-in users by their id, for others by their
-- address.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/postgrest.sql
--
-- On a migrated database (pg-limiter migrate), as a superuser. All of it is in one transaction, which ends with
-- ROLLBACK: with COMMIT there instead, it stays.
--
-- PostgREST runs each request in a transaction of its own, and an error rolls it back:
--   * What is refused was not charged, and so is free what fails for another reason. A denial writes nothing anyway.
--   * GET and HEAD run READ ONLY, and so does POST to a function that is STABLE or IMMUTABLE: nothing can be taken
--     there. What has to be limited is a VOLATILE function that is called by POST. Limit plain reads of tables in the
--     proxy.
--   * Leave db-tx-end at its default, commit. Where `Prefer: tx=rollback` is heeded, a client may have its answer, and
--     its token back.
BEGIN;

-- api_owner owns what is below, and may ask the limiter. Those whom requests run as may not: if db-schemas named the
-- limiter's schema, whoever may execute its functions could reset a limit, or use up that of others, at
-- /rpc/rate_limit_reset.
DO $$
DECLARE
  needed text;
BEGIN
  FOREACH needed IN ARRAY ARRAY['api_owner', 'authenticated', 'web_anon'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = needed) THEN EXECUTE format('CREATE ROLE %I', needed); END IF;
  END LOOP;
END $$;
GRANT EXECUTE ON FUNCTION public.rate_limit, public.rate_limit_check TO api_owner;
CREATE SCHEMA api AUTHORIZATION api_owner; -- db-schemas = "api"
CREATE SCHEMA private AUTHORIZATION api_owner; -- no URL leads there
GRANT USAGE ON SCHEMA api, private TO authenticated, web_anon;

SET LOCAL ROLE api_owner;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- Whom a request is counted for. PostgREST has checked the token; an address is what the proxy before it says. (The
-- last one: those in front of it are what the client says.) After a transaction, such settings are '' and not NULL.
CREATE FUNCTION private.caller() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(
    'user ' || (nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub'),
    'address ' || substring(nullif(current_setting('request.headers', true), '')::json ->> 'x-forwarded-for'
      FROM '[^, ]+$'),
    'unknown'
  )
$$;

-- Refuses the request, with a status and a header of its own. (PostgREST before 12 does not know PGRST. There it is
-- RAISE SQLSTATE 'PT429' USING MESSAGE = .., DETAIL = ..; with texts, and without the header.)
CREATE FUNCTION private.refuse(name text, retry_after interval) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  seconds CONSTANT text := ceil(extract(epoch FROM retry_after));
BEGIN
  RAISE SQLSTATE 'PGRST' USING
    MESSAGE = json_build_object(
      'code', 'RL429',
      'message', format('rate limit "%s" exceeded', name),
      'details', format('Retry after %s seconds.', seconds),
      'hint', 'Wait, then try again.'
    ),
    DETAIL = json_build_object('status', 429, 'headers', json_build_object('Retry-After', seconds));
END $$;

-- For every request: db-pre-request = "private.limit_request". One that cannot write is only checked: whoever has used
-- up the limit has to wait before reading, too, but reads are not counted.
CREATE FUNCTION private.limit_request() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  IF current_setting('transaction_read_only')::boolean THEN
    SELECT * INTO decision FROM public.rate_limit_check('requests', private.caller(), 'token_bucket', 6, '1 hour');
  ELSE
    SELECT * INTO decision FROM public.rate_limit('requests', private.caller(), 'token_bucket', 6, '1 hour');
  END IF;
  IF NOT decision.ok THEN
    PERFORM private.refuse('requests', decision.retry_after);
  END IF;
END $$;
GRANT EXECUTE ON FUNCTION private.limit_request TO authenticated, web_anon;

-- POST /rpc/send_message: two an hour, for users. The message and its tokens commit together.
CREATE TABLE api.messages (author text NOT NULL, body text NOT NULL CHECK (body <> ''));
GRANT SELECT ON api.messages TO authenticated;

CREATE FUNCTION api.send_message(body text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  INSERT INTO api.messages VALUES (private.caller(), body);
  SELECT * INTO decision FROM public.rate_limit('messages', private.caller(), 'token_bucket', 2, '1 hour');
  IF NOT decision.ok THEN
    PERFORM private.refuse('messages', decision.retry_after);
  END IF;
  RETURN format('sent, %s left', round(decision.value));
END $$;
GRANT EXECUTE ON FUNCTION api.send_message TO authenticated;

-- POST /rpc/search: a read that costs. VOLATILE, so that it can be limited; then GET /rpc/search is answered with 405.
CREATE FUNCTION api.search(term text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  SELECT * INTO decision FROM public.rate_limit('searches', private.caller(), 'token_bucket', 2, '1 hour');
  IF NOT decision.ok THEN
    PERFORM private.refuse('searches', decision.retry_after);
  END IF;
  RETURN (SELECT count(*) FROM api.messages AS m WHERE m.body = term);
END $$;
GRANT EXECUTE ON FUNCTION api.search TO authenticated, web_anon;

-- What clients see. `request` is for this file only: it does what PostgREST does for a request, but for the HTTP.
-- `claims` are those of a token that PostgREST has checked.
RESET ROLE;
CREATE FUNCTION pg_temp.request(
  method text, claims json, headers json, statement text, OUT status text, OUT retry_after text, OUT body text
) LANGUAGE plpgsql AS $$
DECLARE
  detail text;
BEGIN
  PERFORM set_config('request.jwt.claims', coalesce(claims::text, ''), true);
  PERFORM set_config('request.headers', coalesce(headers::text, ''), true);
  PERFORM set_config('role', CASE WHEN claims IS NULL THEN 'web_anon' ELSE 'authenticated' END, true);
  PERFORM set_config('transaction_read_only', CASE WHEN method IN ('GET', 'HEAD') THEN 'on' ELSE 'off' END, true);
  PERFORM private.limit_request();
  EXECUTE statement INTO body;
  status := '200';
  IF method IN ('GET', 'HEAD') THEN
    RAISE EXCEPTION 'only to end the READ ONLY transaction' USING ERRCODE = 'RO000';
  END IF;
  PERFORM set_config('role', 'none', true);
EXCEPTION
  WHEN SQLSTATE 'RO000' THEN NULL;
  WHEN SQLSTATE 'PGRST' THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, body = MESSAGE_TEXT;
    status := detail::json ->> 'status';
    retry_after := detail::json -> 'headers' ->> 'Retry-After';
  WHEN read_only_sql_transaction THEN
    status := '405';
    body := SQLERRM;
  WHEN insufficient_privilege THEN
    status := CASE WHEN claims IS NULL THEN '401' ELSE '403' END;
    body := SQLERRM;
  WHEN OTHERS THEN
    status := '400';
    body := SQLERRM;
END $$;

SELECT 'ann sends a message' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('one')$$);
SELECT 'an empty one, which is no message and free' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('')$$);
SELECT 'another' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('two')$$);
SELECT 'one too many' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('three')$$);
SELECT 'bob' AS what, * FROM pg_temp.request('POST', '{"sub": "bob"}', NULL, $$SELECT api.send_message('one')$$);
SELECT 'somebody who is not signed in' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "192.0.2.1"}', $$SELECT api.send_message('one')$$);

SELECT 'ann reads' AS what, *
FROM pg_temp.request('GET', '{"sub": "ann"}', NULL, 'SELECT count(*) FROM api.messages');
SELECT 'a search by GET' AS what, * FROM pg_temp.request('GET', '{"sub": "ann"}', NULL, $$SELECT api.search('one')$$);
SELECT 'by POST' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "192.0.2.1"}', $$SELECT api.search('one')$$);
SELECT 'and again' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "192.0.2.1"}', $$SELECT api.search('one')$$);
SELECT 'from the same address, which says that it is another' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "203.0.113.9, 192.0.2.1"}', $$SELECT api.search('one')$$);

SELECT 'the rest of the six requests of ann' AS what, r.*
FROM generate_series(1, 4) AS n, LATERAL pg_temp.request('POST', '{"sub": "ann"}', NULL, 'SELECT ' || n) AS r;
SELECT 'any other' AS what, * FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, 'SELECT 7');
SELECT 'and reading' AS what, *
FROM pg_temp.request('GET', '{"sub": "ann"}', NULL, 'SELECT count(*) FROM api.messages');
SELECT 'a way around' AS what, *
FROM pg_temp.request('POST', '{"sub": "bob"}', NULL, $$SELECT public.rate_limit_reset('requests', 'user ann')$$);

SELECT 'messages of ' || author AS what, count(*) FROM api.messages GROUP BY author ORDER BY author;
-- What was refused or failed is not among them.
SELECT key || ': ' || name AS what, round(value) AS left FROM public.rate_limits ORDER BY name, key;

ROLLBACK;
