//! Makes calls wait at the same time: the lanes of a limiter are blocked until all calls are enqueued.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, PgPool, Postgres, Transaction};
use pg_limiter::{Error, Item, Limit, Limiter, LimiterConfig, Limits};
use tokio::task::JoinHandle;

use super::Database;

pub const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

/// A limiter with a long deadline and many attempts, for a busy machine.
pub fn limiter(pool: &PgPool, limits: Limits, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let mut config = Database::config();
    config.retry.max_attempts = 10_000;
    config.retry.deadline = Duration::from_secs(60);
    change(&mut config);
    Limiter::with_config(pool.clone(), limits, config)
}

/// A pool without connections until one is acquired, so that all connections with this name are the limiter's own.
pub fn lazy_pool(database: &Database, name: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(4);
    options.connect_lazy(&format!("{}?application_name={name}", database.url)).expect("a URL")
}

/// Backends with this application name.
pub async fn backends(database: &Database, name: &str) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1";
    sqlx::query_scalar(sql).bind(name).fetch_one(&database.pool).await.expect("the backends")
}

/// How many backends of the database wait for a lock.
pub async fn waiting(database: &Database) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the backends")
}

/// Waits until at least this number of the database's backends wait for a lock.
pub async fn until_waiting(database: &Database, backends: i64) {
    for _ in 0..6_000 {
        if waiting(database).await >= backends {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{backends} backends never waited for a lock");
}

/// Locks the rows of these keys, which have to exist.
pub async fn hold(database: &Database, name: &str, keys: &[&str]) -> Transaction<'static, Postgres> {
    let mut holder = database.pool.begin().await.expect("begin");
    let held = sqlx::query("SELECT FROM rate_limit.rate_limits WHERE name = $1 AND key = ANY ($2) FOR UPDATE")
        .bind(name)
        .bind(keys)
        .execute(&mut *holder)
        .await
        .expect("the locks");
    assert_eq!(held.rows_affected(), keys.len() as u64);
    holder
}

/// A batch in every lane that does not end, so that later calls gather behind it. It waits without a lock, because calls that
/// wait for a lock leave the lane.
pub struct Gate {
    holder: Transaction<'static, Postgres>,
    first: Vec<JoinHandle<Result<pg_limiter::Decision, Error>>>,
}

impl Gate {
    /// Creates the trigger. [`close`](Self::close) does so too, but not while another transaction has a lock on the table.
    pub async fn build(database: &Database) {
        let is_built = "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'gate')";
        if sqlx::query_scalar(is_built).fetch_one(&database.pool).await.expect("a look") {
            return;
        }
        let trigger = "CREATE FUNCTION stand_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               WHILE NOT pg_try_advisory_xact_lock_shared(1) LOOP PERFORM pg_sleep(0.005); END LOOP;
               RETURN NEW;
             END $$;
             CREATE TRIGGER gate BEFORE UPDATE ON rate_limit.rate_limits FOR EACH ROW
               WHEN (NEW.name = 'gate') EXECUTE FUNCTION stand_at_the_gate()";
        database.execute(trigger).await;
    }

    pub async fn close(database: &Database, limiter: &Limiter, lanes: usize) -> Self {
        Self::build(database).await;
        // Enough keys to reach every lane.
        let keys: Vec<String> = (0..if lanes == 1 { 1 } else { 32 * lanes }).map(|nth| nth.to_string()).collect();
        sqlx::query(
            "INSERT INTO rate_limit.rate_limits (name, key, value, ts, idle_at) SELECT 'gate', unnest($1), 1, 0, 0",
        )
        .bind(&keys)
        .execute(&database.pool)
        .await
        .expect("rows");
        let mut holder = database.pool.begin().await.expect("begin");
        sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *holder).await.expect("the gate");
        let limit = Limit::token_bucket(9, CENTURY).build().expect("a limit");
        let first = keys.into_iter().map(|key| {
            let (limiter, item) = (limiter.clone(), Item::new(("gate", limit), key));
            tokio::spawn(async move { limiter.limit(item).await })
        });
        let first = first.collect();
        let at_the_gate =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
        let lanes = i64::try_from(lanes).expect("few");
        while sqlx::query_scalar::<_, i64>(at_the_gate).fetch_one(&database.pool).await.expect("a count") < lanes {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self { holder, first }
    }

    pub async fn open(self) {
        self.holder.rollback().await.expect("rollback");
        for task in self.first {
            assert!(task.await.expect("a task").expect("a decision").is_allowed());
        }
    }

    /// Makes all calls, in this order, before any of them is decided. Requires a runtime of one thread.
    pub async fn gathered<F: Future>(self, calls: impl IntoIterator<Item = F>) -> Vec<F::Output> {
        tokio::join!(join_all(calls), self.open()).0
    }
}
