//! Deadlines, dropped futures and lost connections: nothing is left behind, and only known outcomes are reported.

use std::str::FromStr;
use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::migrate::Migrator;
use pg_limiter::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Call, Connections, Error, Limit, Limiter, LimiterConfig, Limits};

use crate::support::Database;

fn limits() -> Limits {
    Limits::new().define("a", Limit::token_bucket(100, Duration::from_secs(360_000))).expect("a limit")
}

fn limiter(pool: &PgPool, deadline: Duration) -> Limiter {
    limiter_over(Connections::Own, pool, deadline)
}

fn limiter_over(connections: Connections, pool: &PgPool, deadline: Duration) -> Limiter {
    let mut config = LimiterConfig::default();
    config.connections = connections;
    config.retry.deadline = deadline;
    Limiter::with_config(pool.clone(), limits(), config)
}

async fn left(limiter: &Limiter) -> f64 {
    limiter.peek(("a", "k")).await.expect("a balance").remaining().round()
}

/// Backends of this database that wait for a lock.
async fn waiting(database: &Database) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the backends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passed_deadline_leaves_no_backend_waiting() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.url, 4).await;
    let patient = limiter(&pool, Duration::from_secs(20));
    let _ = patient.limit(("a", "k")).await.expect("a decision");
    let limiter = limiter(&pool, Duration::from_millis(150));
    let mut holder = database.pool.begin().await.expect("begin");
    let _ = limiter.within(&mut holder).limit(("a", "k")).await.expect("a decision");
    let tasks: Vec<_> = (0..30)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.limit(("a", "k")).await })
        })
        .collect();
    for task in tasks {
        let error = task.await.expect("a task").expect_err("the row is held");
        // A busy machine may not confirm the cancellation in time: then the outcome is unknown, and nothing was taken all the same.
        assert!(matches!(error, Error::Unavailable { .. } | Error::OutcomeUnknown { .. }), "{error}");
    }
    let mut waiters = i64::MAX;
    for _ in 0..40 {
        waiters = waiting(&database).await;
        if waiters == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(waiters, 0, "backends still wait for the row");
    holder.rollback().await.expect("rollback");
    assert_eq!(left(&patient).await, 99.0);
}

#[tokio::test]
async fn a_dropped_call_does_not_pin_its_connection() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.url, 1).await;
    let limiter = limiter(&pool, Duration::from_secs(20));
    let _ = limiter.limit(("a", "k")).await.expect("a decision");
    let mut holder = database.pool.begin().await.expect("begin");
    let _ = limiter.within(&mut holder).limit(("a", "k")).await.expect("a decision");
    let call = limiter.limit(("a", "k"));
    assert!(tokio::time::timeout(Duration::from_millis(200), call).await.is_err(), "the row is held");
    // The pool has one connection; the call uses another key.
    let other = tokio::time::timeout(Duration::from_secs(10), limiter.limit(("a", "other"))).await;
    assert!(other.expect("in time").expect("a decision").is_allowed());
    holder.rollback().await.expect("rollback");
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error("gave up")]
    GaveUp,
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

#[tokio::test]
async fn a_unit_of_work_may_drop_a_statement_of_its_own() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.url, 1).await;
    let limiter = limiter(&pool, Duration::from_secs(20));
    let began = std::time::Instant::now();
    let result = limiter
        .transaction(async |tx| {
            let _ = limiter.within(tx).limit(("a", "k")).await?;
            let slow = sqlx::query("SELECT pg_sleep(60)").execute(&mut *tx);
            match tokio::time::timeout(Duration::from_millis(100), slow).await {
                Ok(done) => done.map(|_| ()).map_err(AppError::from),
                Err(_) => Err(AppError::GaveUp),
            }
        })
        .await;
    assert!(matches!(result, Err(AppError::GaveUp)), "{result:?}");
    assert_eq!(left(&limiter).await, 100.0);
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for the statement");
}

#[tokio::test]
async fn a_unit_of_work_may_take_longer_than_the_deadline_of_its_retries() {
    let database = Database::migrated().await;
    let patient = limiter(&database.pool, Duration::from_secs(20));
    let limiter = limiter(&database.pool, Duration::from_millis(300));
    limiter
        .transaction(async |tx| {
            let _ = limiter.within(tx).limit(("a", "k")).await?;
            sqlx::query("SELECT pg_sleep(0.6)").execute(&mut *tx).await?;
            Ok::<_, AppError>(())
        })
        .await
        .expect("committed");
    assert_eq!(left(&patient).await, 99.0);
}

/// A deferred trigger holds the commit until the backend is killed in the middle of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_while_committing_is_an_unknown_outcome() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, Duration::from_secs(20));
    database
        .execute(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER hold AFTER INSERT OR UPDATE ON rate_limit.rate_limits
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold()",
        )
        .await;
    for connections in [Connections::Own, Connections::Pool] {
        let limiter = limiter_over(connections, &database.pool, Duration::from_secs(20));
        let kill = async {
            // On the limiter's own connection, the statement is the whole transaction; it commits after it has answered.
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event = 'PgSleep' \
                       AND (query = 'COMMIT' OR query LIKE '%rate_limit%')";
            for _ in 0..200 {
                if sqlx::query(sql).fetch_optional(&database.pool).await.expect("kill").is_some() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            panic!("no commit was seen");
        };
        let (decision, ()) = tokio::join!(limiter.limit(("a", "k")), kill);
        let error = decision.expect_err("the connection was lost");
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
        assert!(error.to_string().contains("count the tokens as spent"), "{error}");
        assert_eq!(limiter.retries(), 0, "a commit of unknown outcome is not retried");
    }

    let work = limiter.transaction(async |tx| {
        let _ = limiter.within(tx).limit(("a", "k")).await?;
        Ok::<_, AppError>(())
    });
    let kill = async {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND query = 'COMMIT' AND wait_event = 'PgSleep'";
        while sqlx::query(sql).fetch_optional(&database.pool).await.expect("kill").is_none() {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    let (result, ()) = tokio::join!(work, kill);
    assert!(matches!(result, Err(AppError::Limiter(Error::OutcomeUnknown { .. }))), "{result:?}");
    database.execute("DROP TRIGGER hold ON rate_limit.rate_limits").await;
    assert_eq!(left(&limiter).await, 100.0, "both were rolled back");
}

/// A backend that is killed before its commit has taken nothing, and the call is retried on a new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_before_committing_is_replaced() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, Duration::from_secs(20));
    let _ = limiter.limit(("a", "k")).await.expect("a decision");
    let mut holder = database.pool.begin().await.expect("begin");
    let _ = limiter.within(&mut holder).limit(("a", "k")).await.expect("a decision");
    let kill = async {
        // A signal takes effect later, and a wait ends after 50 ms, so one may end no statement.
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
        for _ in 0..600 {
            if limiter.retries() > 0 {
                break;
            }
            sqlx::query(sql).execute(&database.pool).await.expect("kill");
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        holder.rollback().await.expect("rollback");
    };
    let (decision, ()) = tokio::join!(limiter.limit(("a", "k")), kill);
    assert!(decision.expect("a decision").is_allowed());
    assert_eq!(left(&limiter).await, 98.0);
    assert!(limiter.retries() >= 1);
}

#[tokio::test]
async fn a_closed_pool_and_a_read_only_server_return_clear_errors() {
    let database = Database::migrated().await;
    let pool = Database::pool(&database.url, 1).await;
    let limiter = limiter(&pool, Duration::from_secs(20));
    let name: String =
        sqlx::query_scalar("SELECT current_database()::text").fetch_one(&database.pool).await.expect("a name");
    database.execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    pool.close().await;
    assert!(matches!(limiter.limit(("a", "k")).await, Err(Error::Closed)));
    assert!(matches!(limiter.reset_all_keys("a").await, Err(Error::Closed)));
    assert_eq!(limiter.retries(), 0, "a closed pool does not open again");

    let pool = Database::pool(&database.url, 1).await;
    let limiter = self::limiter(&pool, Duration::from_secs(20));
    let error = limiter.limit(("a", "k")).await.expect_err("read only");
    assert!(matches!(error, Error::Database { .. }) && !error.is_retryable(), "{error}");
    assert!(error.to_string().contains("default_transaction_read_only is on"), "{error}");
    assert_eq!(limiter.retries(), 0, "a retry changes no setting");
    let mut conn = database.pool.acquire().await.expect("a connection");
    let sql =
        format!("SET default_transaction_read_only = off; ALTER DATABASE {name} RESET default_transaction_read_only");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *conn).await.expect("a new primary");
    // The connections to the old server were dropped, so the next call works.
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
}

/// A call that exhausts its retries ends the unit of work around it, however its error is wrapped.
#[tokio::test]
async fn exhausted_retries_are_not_multiplied() {
    let database = Database::migrated().await;
    let mut config = LimiterConfig::default();
    config.retry.max_attempts = 3;
    let limiter = Limiter::with_config(database.pool.clone(), limits(), config);
    database.rivals_always_win().await;
    let result = limiter
        .transaction(async |_tx| {
            let _ = limiter.limit(("a", "k")).await?;
            Ok::<_, AppError>(())
        })
        .await;
    assert!(matches!(result, Err(AppError::Limiter(Error::RetriesExhausted { attempts: 3, .. }))), "{result:?}");
    assert_eq!(limiter.retries(), 2);
}

/// The driver knows a transaction only after the answer to BEGIN. If it went back to the pool open, the next statements would be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_check_or_migration_leaves_no_transaction_in_the_pool() {
    let database = Database::migrated().await;
    database.execute("CREATE TABLE mine (nth integer)").await;
    let pool = Database::pool(&database.url, 2).await;
    let migrator = Migrator::default();
    let mut cut = 0;
    for nth in 0..200_i32 {
        let after = Duration::from_micros(u64::from(nth.unsigned_abs()) * 37 % 2_500);
        let is_cut = if nth % 4 == 0 {
            tokio::time::timeout(after, migrator.run(&pool)).await.is_err()
        } else {
            tokio::time::timeout(after, migrator.check(&pool)).await.is_err()
        };
        cut += u32::from(is_cut);
        sqlx::query("INSERT INTO mine VALUES ($1)").bind(nth).execute(&pool).await.expect("a row");
        let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM mine").fetch_one(&database.pool).await.expect("rows");
        assert_eq!(seen, i64::from(nth) + 1, "cut after {after:?}");
    }
    assert!(cut > 20, "{cut} were cut");
}

/// Calls that are dropped while they wait for a row take no more sessions than the pool has.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_take_no_sessions_beyond_the_pool() {
    let database = Database::migrated().await;
    let mut holder = database.pool.begin().await.expect("begin");
    let _ = limiter(&database.pool, Duration::from_secs(20))
        .within(&mut holder)
        .limit(("a", "k"))
        .await
        .expect("a decision");
    for is_unit_of_work in [false, true] {
        let options = PgConnectOptions::from_str(&database.url).expect("a URL").application_name("dropping");
        let pool = PgPoolOptions::new().max_connections(3).connect_with(options).await.expect("connect");
        let limiter = limiter_over(Connections::Pool, &pool, Duration::from_secs(20));
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%dropping%'";
        let mut most = 0;
        for nth in 0..15 {
            let calls = (0..3).map(|call| {
                let limiter = limiter.clone();
                async move {
                    if is_unit_of_work {
                        let work = limiter
                            .transaction(async |tx| limiter.within(tx).limit(("a", "k")).await.map_err(AppError::from));
                        tokio::time::timeout(Duration::from_millis(100), work).await.is_err()
                    } else {
                        let call = Call::from(("a", "k")).idempotency_key(format!("{nth} {call}"));
                        tokio::time::timeout(Duration::from_millis(100), limiter.limit(call)).await.is_err()
                    }
                }
            });
            assert!(join_all(calls).await.into_iter().all(|is_dropped| is_dropped), "the row is held");
            let found: i64 = sqlx::query_scalar(sessions).fetch_one(&database.pool).await.expect("sessions");
            most = most.max(found);
        }
        assert!(most <= 3 + 6, "{most} sessions of a pool of 3, units of work: {is_unit_of_work}");
        limiter.close().await;
    }
    holder.rollback().await.expect("rollback");
}
