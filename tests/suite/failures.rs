//! Each failure returns its own error, and none of them allows a call.

use std::time::Duration;

use pg_limiter::migrate::Use;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{CallAt, Connections, Error, Limit, Limiter, LimiterConfig, Limits, Op, Schema, TransactionLimiter};

use crate::support::{Database, guide};

fn limits() -> Limits {
    Limits::new().define("a", Limit::token_bucket(10, Duration::from_secs(60))).expect("a limit")
}

#[tokio::test]
async fn a_missing_schema_error_says_to_run_migrate() {
    let database = Database::empty().await;
    let limiter = Limiter::new(database.pool.clone(), limits());
    let error = limiter.limit(("a", "k")).await.expect_err("no table");
    assert!(matches!(error, Error::SchemaMissing { .. }), "{error}");
    assert!(error.to_string().contains("run migrate"), "{error}");
    let mut tx = database.pool.begin().await.expect("begin");
    assert!(matches!(limiter.within(&mut tx).limit(("a", "k")).await, Err(Error::SchemaMissing { .. })));
    tx.rollback().await.expect("rollback");
    let mut config = LimiterConfig::default();
    config.schema = Schema::new("else\"where").expect("a schema");
    let error =
        Limiter::with_config(database.pool.clone(), limits(), config).limit(("a", "k")).await.expect_err("no schema");
    assert!(matches!(&error, Error::SchemaMissing { schema, .. } if schema == "else\"where"), "{error}");
}

#[tokio::test]
async fn no_database_is_an_error_and_not_a_denial() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let pool = PgPool::connect_lazy(&format!("postgres://postgres@127.0.0.1:{port}/postgres")).expect("a URL");
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_millis(500);
    let error = Limiter::with_config(pool, limits(), config).limit(("a", "k")).await.expect_err("no server");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// The database is not at fault, so the error does not advise to check it.
#[test]
fn a_call_outside_of_a_runtime_is_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limiter = runtime.block_on(async {
        let nowhere = sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").expect("a URL");
        Limiter::new(nowhere, limits())
    });
    let mut call = std::pin::pin!(limiter.limit(("a", "k")));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = call.as_mut().poll(&mut context) else { panic!("no error") };
    let expected = "there is no Tokio runtime to run the call on; call it from a task of a Tokio runtime";
    assert_eq!((error.to_string().as_str(), error.code(), error.is_retryable()), (expected, "unavailable", false));
}

#[tokio::test]
async fn a_pool_without_a_free_connection_is_unavailable() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.url, 1).await;
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_secs(2);
    config.connections = Connections::Pool;
    let limiter = Limiter::with_config(pool.clone(), limits(), config);
    let held = pool.acquire().await.expect("the only connection");
    let error = limiter.limit(("a", "k")).await.expect_err("no connection");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    drop(held);
    let _ = limiter.limit(("a", "k")).await.expect("a decision");
}

#[tokio::test]
async fn a_missing_privilege_is_an_error_and_rows_are_out_of_reach() {
    let database = Database::migrated().await;
    let role = format!("app_{}", std::process::id());
    database.execute(&format!("DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")).await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let set = sqlx::AssertSqlSafe(format!("SET ROLE {role}"));
    sqlx::query(set).execute(&mut *conn).await.expect("set role");
    let limiter = Limiter::new(database.pool.clone(), limits());
    let error = limiter.within(&mut conn).limit(("a", "k")).await.expect_err("no privilege");
    assert!(matches!(error, Error::Database { .. }) && error.to_string().contains("permission denied"), "{error}");
    assert!(error.to_string().contains("42501); grant USAGE on the schema and EXECUTE on the functions"), "{error}");

    // The guide's grants are sufficient, and give no access to the rows.
    database.execute(&guide::grants(Use::App).replace("app_role", &role)).await;
    assert!(limiter.within(&mut conn).limit(("a", "k")).await.expect("a decision").is_allowed());
    let once = || pg_limiter::Call::from(("a", "k")).idempotency_key("1");
    assert!(limiter.within(&mut conn).limit(once()).await.expect("a decision").is_allowed());
    let at = std::time::SystemTime::UNIX_EPOCH;
    let past = [CallAt::new(at, Op::Limit, ("a", "k"))];
    let error = TransactionLimiter::new(limits()).decide_at(&mut conn, &past).await.expect_err("no privilege");
    assert!(error.to_string().contains("42501); leave out the time"), "{error}");
    for by_hand in [
        "SELECT FROM rate_limit.rate_limits",
        "SELECT FROM rate_limit._rows('a', 'k')",
        "SELECT FROM rate_limit.answers",
        "UPDATE rate_limit.rate_limits SET value = 99",
        "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) VALUES ('a', 'k2', 99, 0, 0)",
        "DELETE FROM rate_limit.rate_limits",
        "TRUNCATE rate_limit.rate_limits",
        "DELETE FROM rate_limit.answers",
    ] {
        let refused = sqlx::query(by_hand).execute(&mut *conn).await.expect_err("out of reach");
        let refused = Error::from_sql(refused, "rate_limit").to_string();
        let of_function = by_hand.contains("_rows(");
        let advice =
            if of_function { "grant USAGE on the schema and EXECUTE" } else { "grant SELECT on it: `pg-limiter" };
        assert!(refused.contains("permission denied") && refused.contains(advice), "{by_hand}: {refused}");
    }
    sqlx::query("RESET ROLE").execute(&mut *conn).await.expect("reset role");
    drop(conn);
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// Functions and operators that shadow the built-in ones are not called.
#[tokio::test]
async fn a_hostile_search_path_changes_nothing() {
    let database = Database::migrated().await;
    database
        .execute(
            "CREATE SCHEMA evil;
             CREATE TABLE evil.rate_limits (LIKE rate_limit.rate_limits);
             CREATE FUNCTION evil.no(double precision, double precision) RETURNS boolean LANGUAGE sql AS 'SELECT true';
             CREATE OPERATOR evil.>= (FUNCTION = evil.no, LEFTARG = double precision, RIGHTARG = double precision);
             CREATE FUNCTION evil.least(double precision, double precision) RETURNS double precision LANGUAGE sql AS 'SELECT 1e9::float8';
             CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$SELECT 'infinity'::timestamptz$$;
             CREATE FUNCTION evil._clock() RETURNS bigint LANGUAGE sql AS 'SELECT 9e15::bigint'",
        )
        .await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let limiter = Limiter::new(database.pool.clone(), limits());
    sqlx::raw_sql(
        "SET search_path = evil, pg_catalog, public; CREATE TEMP TABLE rate_limits (LIKE rate_limit.rate_limits)",
    )
    .execute(&mut *conn)
    .await
    .expect("the trap");
    assert!(limiter.within(&mut conn).limit(("a", "k", 10.0)).await.expect("a decision").is_allowed());
    assert!(limiter.within(&mut conn).limit(("a", "k")).await.expect("a decision").is_denied());
    let rows: i64 = sqlx::query_scalar("SELECT pg_catalog.count(*) FROM rate_limit.rate_limits")
        .fetch_one(&mut *conn)
        .await
        .expect("count");
    assert_eq!(rows, 1);
    let path: String = sqlx::query_scalar("SHOW search_path").fetch_one(&mut *conn).await.expect("the path");
    assert_eq!(path, "evil, pg_catalog, public");
    sqlx::query("DISCARD ALL").execute(&mut *conn).await.expect("discard");
}

#[tokio::test]
async fn any_text_is_a_valid_key() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits());
    let long = "ü".repeat(512);
    let keys = [
        "",
        "'; DROP TABLE rate_limit.rate_limits; --",
        "{\"a\",NULL}",
        "\u{1}\u{7f}\\",
        "NULL",
        "日本語 🦀",
        " ",
        long.as_str(),
    ];
    for key in keys {
        assert!(limiter.limit(("a", key)).await.expect("a decision").is_allowed());
        assert!((limiter.peek(("a", key)).await.expect("a balance").remaining() - 9.0).abs() < 0.05, "{key:?}");
    }
    assert_eq!(database.rows().await, keys.len() as i64);
}

/// The error names the setting of the server that ended the session.
#[tokio::test]
async fn a_time_out_of_the_session_is_named() {
    let database = Database::empty().await;
    for (code, setting) in [
        ("25P03", "raise idle_in_transaction_session_timeout"),
        ("25P04", "raise transaction_timeout"),
        ("57P05", "raise idle_session_timeout"),
    ] {
        let raise = sqlx::AssertSqlSafe(format!("DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$"));
        let error = sqlx::raw_sql(raise).execute(&database.pool).await.expect_err("an error");
        let error = Error::from_sql(error, "rate_limit");
        let text = error.to_string();
        assert!(matches!(error, Error::Unavailable { .. }) && text.contains(setting) && text.contains(code), "{text}");
        assert!(!text.contains("that it is running"), "{text}");
    }
}

/// The hint of an error about a resource shows no key. Any other hint could.
#[tokio::test]
async fn the_hint_is_shown_if_the_server_lacks_a_resource() {
    let database = Database::empty().await;
    for (code, word) in [
        ("53100", Some("free space on the server's disk")),
        ("53200", Some("check the memory")),
        ("53400", Some("look up the SQLSTATE")),
        ("23514", None),
    ] {
        let raise = format!(
            "DO $$ BEGIN RAISE SQLSTATE '{code}' USING MESSAGE = 'it is full', HINT = 'Check the space.'; END $$"
        );
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&database.pool).await.expect_err("an error");
        let text = Error::from_sql(error, "rate_limit").to_string();
        assert_eq!(text.contains("hint of the server: Check the space;"), word.is_some(), "{text}");
        assert!(
            text.contains("it is full") && text.contains(code) && text.contains(word.unwrap_or_default()),
            "{text}"
        );
    }
}
