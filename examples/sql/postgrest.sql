-- Limits behind PostgREST (and Supabase). Requests above a limit get 429 with Retry-After. Signed-in users are limited by
-- their id, other clients by their address.
--
--   psql -v ON_ERROR_STOP=1 -f examples/sql/postgrest.sql
--
-- Run it in a migrated database (pg-limiter migrate), as a superuser. The file is one transaction, which ends with ROLLBACK.
-- To keep what it creates, replace ROLLBACK with COMMIT.
--
-- PostgREST runs each request in a separate transaction, and an error rolls it back:
--   * A request that is denied is not charged, and neither is one that fails for another reason.
--   * GET and HEAD run READ ONLY, and so does POST to a STABLE or IMMUTABLE function: they cannot take tokens. To limit a
--     request, make it a VOLATILE function that is called by POST. Limit plain reads of tables in the proxy.
--   * Leave db-tx-end at its default, commit. If PostgREST honours `Prefer: tx=rollback`, a client can get the response and
--     have its token rolled back.
BEGIN;

-- api_owner owns the objects below, and may call the limiter. The roles that requests run as may not. If db-schemas named
-- the limiter's schema, every role that may execute its functions could reset limits, or use up those of other users, at
-- URLs such as /rpc/reset.
DO $$
DECLARE
  needed text;
BEGIN
  FOREACH needed IN ARRAY ARRAY['api_owner', 'authenticated', 'web_anon'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = needed) THEN EXECUTE format('CREATE ROLE %I', needed); END IF;
  END LOOP;
END $$;
GRANT USAGE ON SCHEMA rate_limit TO api_owner;
GRANT EXECUTE ON FUNCTION rate_limit.limit_with, rate_limit.check_with TO api_owner;
CREATE SCHEMA api AUTHORIZATION api_owner; -- db-schemas = "api"
CREATE SCHEMA private AUTHORIZATION api_owner; -- no URL leads there
GRANT USAGE ON SCHEMA api, private TO authenticated, web_anon;

SET LOCAL ROLE api_owner;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

-- The key of a request. PostgREST has verified the claims. The address is the last one in X-Forwarded-For, which the proxy in
-- front of PostgREST added; the client can forge those before it. After a transaction, such settings are '' instead of NULL.
CREATE FUNCTION private.caller() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(
    'user ' || (nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub'),
    'address ' || substring(nullif(current_setting('request.headers', true), '')::json ->> 'x-forwarded-for'
      FROM '[^, ]+$'),
    'unknown'
  )
$$;

-- Denies the request with the status 429 and a Retry-After header. (PostgREST before 12 does not support PGRST. Use
-- RAISE SQLSTATE 'PT429' USING MESSAGE = .., DETAIL = ..; with plain texts there. It cannot set the header.)
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

-- Runs before every request: db-pre-request = "private.limit_request". A read-only request is only checked: it is denied if
-- the limit is used up, but it is not charged.
CREATE FUNCTION private.limit_request() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  IF current_setting('transaction_read_only')::boolean THEN
    SELECT * INTO decision FROM rate_limit.check_with('requests', private.caller(), 'token_bucket', 6, '1 hour');
  ELSE
    SELECT * INTO decision FROM rate_limit.limit_with('requests', private.caller(), 'token_bucket', 6, '1 hour');
  END IF;
  IF NOT decision.ok THEN
    PERFORM private.refuse('requests', decision.retry_after);
  END IF;
END $$;
GRANT EXECUTE ON FUNCTION private.limit_request TO authenticated, web_anon;

-- POST /rpc/send_message: two an hour for each signed-in user. The message and its tokens commit together.
CREATE TABLE api.messages (author text NOT NULL, body text NOT NULL CHECK (body <> ''));
GRANT SELECT ON api.messages TO authenticated;

CREATE FUNCTION api.send_message(body text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  INSERT INTO api.messages VALUES (private.caller(), body);
  SELECT * INTO decision FROM rate_limit.limit_with('messages', private.caller(), 'token_bucket', 2, '1 hour');
  IF NOT decision.ok THEN
    PERFORM private.refuse('messages', decision.retry_after);
  END IF;
  RETURN format('sent, %s left', round(decision.value));
END $$;
GRANT EXECUTE ON FUNCTION api.send_message TO authenticated;

-- POST /rpc/search: a read that is limited. It is VOLATILE, so that it can take tokens. GET /rpc/search therefore gets 405.
CREATE FUNCTION api.search(term text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  decision record;
BEGIN
  SELECT * INTO decision FROM rate_limit.limit_with('searches', private.caller(), 'token_bucket', 2, '1 hour');
  IF NOT decision.ok THEN
    PERFORM private.refuse('searches', decision.retry_after);
  END IF;
  RETURN (SELECT count(*) FROM api.messages AS m WHERE m.body = term);
END $$;
GRANT EXECUTE ON FUNCTION api.search TO authenticated, web_anon;

-- The clients' view. `request` is for this file only: it does what PostgREST does for a request, without HTTP. `claims` are
-- those of a token that PostgREST has verified.
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
SELECT 'an empty message: invalid, and not charged' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('')$$);
SELECT 'a second message' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('two')$$);
SELECT 'a third message' AS what, *
FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, $$SELECT api.send_message('three')$$);
SELECT 'bob sends a message' AS what, *
FROM pg_temp.request('POST', '{"sub": "bob"}', NULL, $$SELECT api.send_message('one')$$);
SELECT 'a client that is not signed in' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "192.0.2.1"}', $$SELECT api.send_message('one')$$);

SELECT 'ann reads' AS what, *
FROM pg_temp.request('GET', '{"sub": "ann"}', NULL, 'SELECT count(*) FROM api.messages');
SELECT 'a search by GET' AS what, * FROM pg_temp.request('GET', '{"sub": "ann"}', NULL, $$SELECT api.search('one')$$);
SELECT 'a search by POST' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "192.0.2.1"}', $$SELECT api.search('one')$$);
SELECT 'a second search' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "192.0.2.1"}', $$SELECT api.search('one')$$);
SELECT 'a third search, with a forged address' AS what, *
FROM pg_temp.request('POST', NULL, '{"x-forwarded-for": "203.0.113.9, 192.0.2.1"}', $$SELECT api.search('one')$$);

SELECT 'the rest of the six requests by ann' AS what, r.*
FROM generate_series(1, 4) AS n, LATERAL pg_temp.request('POST', '{"sub": "ann"}', NULL, 'SELECT ' || n) AS r;
SELECT 'one more request by ann' AS what, * FROM pg_temp.request('POST', '{"sub": "ann"}', NULL, 'SELECT 7');
SELECT 'a read by ann' AS what, *
FROM pg_temp.request('GET', '{"sub": "ann"}', NULL, 'SELECT count(*) FROM api.messages');
SELECT 'a direct call to the limiter' AS what, *
FROM pg_temp.request('POST', '{"sub": "bob"}', NULL, $$SELECT rate_limit.reset('requests', 'user ann')$$);

SELECT 'messages by ' || author AS what, count(*) FROM api.messages GROUP BY author ORDER BY author;
-- Requests that were denied or failed were not charged.
SELECT key || ': ' || name AS what, round(value) AS left FROM rate_limit.rate_limits ORDER BY name, key;

ROLLBACK;
