//! Connections of the limiter's own have a name in `pg_stat_activity`, unless the application has chosen one.

use std::time::Duration;

use pg_limiter::migrate::migrate;
use pg_limiter::queue::{Finish, Queue, WorkerConfig, handler_fn};
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Item, Limit, Limiter, Limits};

use crate::support::Database;
use crate::support::gate::{CENTURY, hold, lazy_pool, until_waiting};
use crate::support::payloads::payload;
use crate::support::proxy::{Fault, Point, Proxy, Way};

/// The names of the database's sessions with this text in their last statement.
async fn names(database: &Database, statement: &str) -> Vec<String> {
    let sql = "SELECT DISTINCT application_name FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid() ORDER BY 1";
    sqlx::query_scalar(sql).bind(statement).fetch_all(&database.pool).await.expect("the sessions")
}

/// A pool without a name, or with one.
fn pool(database: &Database, name: Option<&str>) -> PgPool {
    match name {
        Some(name) => lazy_pool(database, name),
        None => PgPool::connect_lazy(&database.url).expect("a URL"),
    }
}

fn limiter(pool: &PgPool) -> Limiter {
    let limits = Limits::new()
        .define("a", Limit::token_bucket(100, CENTURY))
        .and_then(|limits| limits.define("b", Limit::token_bucket(100, CENTURY)));
    Limiter::new(pool.clone(), limits.expect("limits"))
}

#[tokio::test]
async fn the_lanes_have_a_name() {
    for (given, expected) in [(None, "pg-limiter"), (Some("shop"), "shop"), (Some(""), "")] {
        let database = Database::migrated().await;
        let limiter = limiter(&pool(&database, given));
        for key in ["k", "l", "m", "n"] {
            assert!(limiter.limit(("a", key)).await.expect("a decision").is_allowed());
        }
        // Also while another transaction has locked a row, for the calls that wait beside the lanes.
        let holder = hold(&database, "a", &["k"]).await;
        let waits = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.limit([Item::new("a", "k"), Item::new("b", "k")]).await }
        });
        until_waiting(&database, 1).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut seen = names(&database, "\"rate_limit\".").await;
        // Between two attempts, the last statement of a session is another one.
        for _ in 0..500 {
            if !seen.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            seen = names(&database, "\"rate_limit\".").await;
        }
        assert_eq!(seen, [expected], "{given:?}");
        holder.rollback().await.expect("rollback");
        assert!(waits.await.expect("a task").expect("a decision").is_allowed());
        // The pool is the application's.
        let mut tx = limiter.pool().begin().await.expect("begin");
        sqlx::query("SELECT 'of the pool'").execute(&mut *tx).await.expect("a statement");
        assert_eq!(names(&database, "of the pool").await, [given.unwrap_or_default()]);
    }
}

#[tokio::test]
async fn a_worker_listens_under_a_name() {
    for (given, expected) in [(None, "pg-limiter"), (Some("shop"), "shop")] {
        let database = Database::migrated().await;
        let queue = Queue::new(&limiter(&pool(&database, given)), "q").expect("a queue");
        let handler = handler_fn(|_, _| Box::pin(async { Ok(Finish::Done) }));
        let mut config = WorkerConfig::default();
        config.concurrency = 1;
        let worker = queue.worker(config, handler).expect("a worker");
        let mut found = Vec::new();
        let listens = async {
            while found.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                found = names(&database, "LISTEN").await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), worker.run(listens)).await.expect("in time").expect("a report");
        assert_eq!(found, [expected]);
    }
}

/// On an engine without transactional schema changes, the migrator opens connections.
#[tokio::test]
async fn a_stepwise_migration_has_a_name() {
    let database = Database::empty().await;
    database
        .execute(
            "CREATE TABLE seen (name text);
             CREATE FUNCTION see() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO public.seen VALUES (pg_catalog.current_setting('application_name'));
             END $$;
             CREATE EVENT TRIGGER see ON ddl_command_end EXECUTE FUNCTION see()",
        )
        .await;
    let proxy = Proxy::before(&database.url).await;
    proxy.put(Fault::always(Point::Version, Way::Says("PostgreSQL 15.12-YB-2025.2.0.0-b0 on x86_64-pc-linux-gnu")));
    proxy.put(Fault::always(Point::AdvisoryLock, Way::Before(payload("no advisory locks"))));
    migrate(&PgPool::connect_lazy(&proxy.url).expect("a URL")).await.expect("migrated");
    let seen = "SELECT DISTINCT name FROM seen";
    let seen: Vec<String> = sqlx::query_scalar(seen).fetch_all(&database.pool).await.expect("the names");
    assert_eq!(seen, ["pg-limiter"]);
}
