//! The guide's triggers under logical replication: the worker that applies a subscription runs with an empty search_path.

use std::time::{Duration, Instant};

use pg_limiter::embedded::Server;
use pg_limiter::migrate::migrate;
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};

use crate::support::{Database, guide, server_config};

async fn start() -> Server {
    let mut config = server_config();
    config.durable = false;
    config.settings.push(("wal_level".into(), "logical".into()));
    let start = move || Server::start(&config).unwrap_or_else(|error| panic!("no PostgreSQL for the tests: {error}"));
    tokio::task::spawn_blocking(start).await.expect("a server")
}

async fn execute(pool: &PgPool, sql: &str) {
    let executed = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await;
    executed.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn with_triggers(pool: &PgPool) {
    execute(pool, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE TABLE posts (author text NOT NULL, body text)")
        .await;
    migrate(pool).await.expect("migrate");
    for trigger in guide::sql_of(guide::chapter("sql")).into_iter().filter(|block| block.contains("CREATE TRIGGER")) {
        execute(pool, trigger).await;
    }
}

async fn count(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.expect("a count")
}

async fn until(pool: &PgPool, sql: &str, expected: i64) {
    let began = Instant::now();
    while count(pool, sql).await != expected {
        assert!(began.elapsed() < Duration::from_secs(60), "{sql} never returned {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_subscription_applies_rows_that_the_triggers_would_limit() {
    let server = start().await;
    let publisher = Database::pool(&server.url("postgres"), 2).await;
    execute(&publisher, "CREATE DATABASE subscriber TEMPLATE template0").await;
    let subscriber = Database::pool(&server.url("subscriber"), 2).await;
    with_triggers(&publisher).await;
    with_triggers(&subscriber).await;
    // In one server, the slot has to be created beforehand.
    execute(&publisher, "CREATE PUBLICATION app FOR TABLE posts, messages").await;
    execute(&publisher, "SELECT pg_create_logical_replication_slot('app', 'pgoutput')").await;
    let connection = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", server.port());
    let subscribe = format!(
        "CREATE SUBSCRIPTION app CONNECTION '{connection}' PUBLICATION app WITH (create_slot = false, slot_name = 'app', copy_data = false)"
    );
    execute(&subscriber, &subscribe).await;

    // The publisher has charged these rows, or has not limited them.
    execute(
        &publisher,
        "INSERT INTO posts VALUES ('ann', '1'), ('ann', '2'); INSERT INTO messages VALUES ('ann', 'red')",
    )
    .await;
    execute(
        &publisher,
        "ALTER TABLE posts DISABLE TRIGGER limit_posts;
         INSERT INTO posts SELECT 'ann', n::text FROM generate_series(3, 9) AS n;
         ALTER TABLE posts ENABLE TRIGGER limit_posts",
    )
    .await;
    until(&subscriber, "SELECT count(*) FROM posts", 9).await;
    until(&subscriber, "SELECT count(*) FROM messages", 1).await;
    assert_eq!(
        count(&subscriber, "SELECT count(*) FROM rate_limit.rate_limits").await,
        0,
        "the subscriber has charged them again"
    );

    // Triggers that fire there, too, find the limiter.
    execute(
        &subscriber,
        "ALTER TABLE posts ENABLE ALWAYS TRIGGER limit_posts; ALTER TABLE messages ENABLE ALWAYS TRIGGER limit_messages",
    )
    .await;
    execute(
        &publisher,
        "INSERT INTO posts VALUES ('bob', '1'), ('bob', '2'); INSERT INTO messages VALUES ('bob', 'blue')",
    )
    .await;
    until(&subscriber, "SELECT count(*) FROM posts WHERE author = 'bob'", 2).await;
    until(&subscriber, "SELECT count(*) FROM messages WHERE author = 'bob'", 1).await;
    assert_eq!(count(&subscriber, "SELECT count(*) FROM rate_limit.rate_limits").await, 3);
    execute(&subscriber, "ALTER SUBSCRIPTION app DISABLE; ALTER SUBSCRIPTION app SET (slot_name = NONE)").await;
    execute(&subscriber, "DROP SUBSCRIPTION app").await;
    execute(&publisher, "SELECT pg_drop_replication_slot('app') FROM pg_replication_slots WHERE NOT active").await;
}

/// Also a session with an empty search_path, and a role without privileges on the limiter, insert within the limit.
#[tokio::test]
async fn the_guides_triggers_need_no_search_path_and_no_privileges() {
    let database = Database::migrated().await;
    execute(&database.pool, "CREATE TABLE posts (author text NOT NULL, body text)").await;
    for trigger in guide::sql_of(guide::chapter("sql")).into_iter().filter(|block| block.contains("CREATE TRIGGER")) {
        execute(&database.pool, trigger).await;
    }
    let role = format!("writer_of_{}", database.name);
    execute(&database.pool, &format!("CREATE ROLE {role}; GRANT INSERT ON posts, messages TO {role}")).await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let set = AssertSqlSafe(format!("SET search_path = ''; SET ROLE {role}"));
    sqlx::raw_sql(set).execute(&mut *conn).await.expect("settings");
    sqlx::raw_sql(
        "INSERT INTO public.posts VALUES ('ann', '1'), ('ann', '2'); INSERT INTO public.messages VALUES ('ann', 'red')",
    )
    .execute(&mut *conn)
    .await
    .expect("allowed");
    let error =
        sqlx::query("INSERT INTO public.posts VALUES ('ann', '3')").execute(&mut *conn).await.expect_err("limited");
    assert_eq!(error.as_database_error().and_then(|error| error.code()).as_deref(), Some("RL429"), "{error}");
    // The role cannot attach the function to a table of its own, with keys of its choice.
    let attach = "CREATE TEMP TABLE mine (author text); CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION public.limit_posts()";
    let error = sqlx::raw_sql(attach).execute(&mut *conn).await.expect_err("refused").to_string();
    assert!(error.contains("permission denied for function"), "{error}");
    sqlx::raw_sql("DISCARD ALL").execute(&mut *conn).await.expect("reset");
    drop(conn);
    execute(&database.pool, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}
