//! Failures that need a test of their own: lasting ones, slow ones, and ones that are not reported.

use std::time::{Duration, Instant};

use pg_limiter::migrate::migrate;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::{Connections, Engine, Error, Limit, Limiter, LimiterConfig, Limits};

use crate::support::gate::CENTURY;
use crate::support::payloads::payload;
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::settings::database_with;
use crate::support::{Database, limiter_at};

const CAPACITY: u32 = 9;
const YUGABYTE: &str = "PostgreSQL 15.12-YB-2025.2.0.0-b0 on x86_64-pc-linux-gnu";

fn limiter(url: &str, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let limits = Limits::new().define("a", Limit::token_bucket(CAPACITY, CENTURY)).expect("a limit");
    limiter_at(url, limits, |config| {
        config.lanes = 1;
        change(config);
    })
}

async fn spent(direct: &PgPool) -> f64 {
    let left = "SELECT coalesce((SELECT value FROM rate_limit.rate_limits WHERE name = 'a' AND key = 'k'), $1)";
    let left: f64 = sqlx::query_scalar(left).bind(f64::from(CAPACITY)).fetch_one(direct).await.expect("a balance");
    (f64::from(CAPACITY) - left).round()
}

async fn behind_a_proxy() -> (Database, Proxy) {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    (database, proxy)
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error(transparent)]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// A standby cancels a statement again and again, so the advice is not only to retry it.
#[tokio::test]
async fn a_conflict_with_recovery_is_named() {
    let (_database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy.url, |_| {});
    for (name, advice) in
        [("recovery conflict", "raise max_standby_streaming_delay"), ("pivot", "retry it from the start")]
    {
        let mut tx = limiter.pool().begin().await.expect("begin");
        proxy.put(Fault::once(Point::Statement, Way::Before(payload(name))));
        let error = limiter.within(&mut tx).check(("a", "k")).await.expect_err(name);
        assert!(matches!(error, Error::Conflict { .. }) && error.to_string().contains(advice), "{error}");
    }
}

/// A lasting failure uses up all attempts that the policy allows, and takes nothing.
#[tokio::test]
async fn attempts_are_bounded() {
    let (database, proxy) = behind_a_proxy().await;
    let cases = [("conflict", Point::Statement), ("deadlock", Point::Statement), ("pivot", Point::Commit)];
    for connections in [Connections::Own, Connections::Pool] {
        for (name, point) in cases {
            let limiter = limiter(&proxy.url, |config| {
                config.connections = connections;
                config.retry.max_attempts = 4;
                config.retry.deadline = Duration::from_secs(30);
            });
            let before = proxy.count(|seen| &seen.statements);
            proxy.put(Fault::always(point, Way::Before(payload(name))));
            let error = limiter.limit(("a", "k")).await.expect_err(name);
            proxy.calm();
            assert!(matches!(error, Error::RetriesExhausted { attempts: 4, .. }), "{name}: {error}");
            assert_eq!(limiter.retries(), 3, "{name}");
            assert_eq!(proxy.count(|seen| &seen.statements) - before, 4, "{name}");
            assert_eq!(spent(&database.pool).await, 0.0, "{name}");
        }
    }
}

/// If the last attempt gets no answer, the error names what the server answered to the one before.
#[tokio::test]
async fn the_last_answer_is_reported_if_none_follows() {
    let (_database, proxy) = behind_a_proxy().await;
    for connections in [Connections::Own, Connections::Pool] {
        let limiter = limiter(&proxy.url, |config| {
            config.connections = connections;
            config.retry.deadline = Duration::from_millis(500);
        });
        proxy.put(Fault::once(Point::Statement, Way::Before(payload("read only"))));
        proxy.put(Fault { skip: 1, ..Fault::always(Point::Connect, Way::Hold) });
        let error = limiter.limit(("a", "k")).await.expect_err("no primary");
        proxy.calm();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("25006"), "{connections:?}: {error}");
    }
}

/// The last attempt may be the one that succeeds.
#[tokio::test]
async fn consecutive_conflicts_are_retried() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy.url, |_| ());
    let faults = ["conflict", "deadlock", "killed", "old read restart", "crashed", "read only"];
    for name in faults {
        proxy.put(Fault::once(Point::Statement, Way::Before(payload(name))));
    }
    assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
    assert_eq!(limiter.retries(), 6);
    assert_eq!(proxy.count(|seen| &seen.faults), 6);
    assert_eq!(spent(&database.pool).await, 1.0);
}

/// The call returns by its deadline. It may be carried out later, and the error says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_may_complete_after_its_deadline_has_an_unknown_outcome() {
    // Much less than the second after which the server ends an idle transaction.
    let deadline = Duration::from_millis(400);
    for (connections, point) in
        [(Connections::Own, Point::Statement), (Connections::Own, Point::Commit), (Connections::Pool, Point::Commit)]
    {
        let (database, proxy) = behind_a_proxy().await;
        let limiter = limiter(&proxy.url, |config| {
            config.connections = connections;
            config.retry.deadline = deadline;
        });
        proxy.put(Fault::once(point, Way::Hold));
        let began = Instant::now();
        let error = limiter.limit(("a", "k")).await.expect_err("it takes too long");
        proxy.let_go();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{connections:?}, {point:?}: {error}");
        assert!(began.elapsed() >= deadline, "given up early");
        assert_eq!(limiter.retries(), 0);
        // The call is carried out after all.
        proxy.until_idle().await;
        while spent(&database.pool).await == 0.0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{connections:?}, {point:?}: it never happened");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(spent(&database.pool).await, 1.0, "{connections:?}, {point:?}");
    }
}

/// The unit of work around a call does not retry a commit of unknown outcome either.
#[tokio::test]
async fn a_unit_of_work_does_not_repeat_a_call_of_unknown_outcome() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy.url, |_| ());
    proxy.put(Fault::once(Point::Statement, Way::Cut));
    let result = limiter
        .transaction(async |_tx| {
            let _ = limiter.limit(("a", "k")).await?;
            Ok::<_, AppError>(())
        })
        .await;
    let context = format!("{result:?}; {} statements", proxy.count(|seen| &seen.statements));
    assert!(matches!(result, Err(AppError::Limiter(Error::OutcomeUnknown { .. }))), "{context}");
    assert_eq!(spent(&database.pool).await, 1.0, "{context}");
}

/// The server answers the COMMIT of a failed transaction with ROLLBACK, not with an error. So a unit of work that dropped the
/// first error must return one.
#[tokio::test]
async fn work_that_drops_an_error_is_reported_as_not_committed() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy.url, |_| ());
    proxy.put(Fault::once(Point::Statement, Way::Before(payload("duplicate"))));
    let result = limiter
        .transaction(async |tx| {
            let _dropped = limiter.within(tx).limit(("a", "k")).await;
            Ok::<_, AppError>(())
        })
        .await;
    assert!(matches!(result, Err(AppError::Limiter(Error::Aborted))), "{result:?}");
    assert_eq!((spent(&database.pool).await, proxy.count(|seen| &seen.commits)), (0.0, 0));
}

/// The driver does not show the server's answer to a COMMIT, so a caller that commits a failed transaction gets no error. It
/// has had one before, from the statement that failed.
#[tokio::test]
async fn a_commit_answered_with_rollback_takes_nothing() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&proxy.url, |_| ());
    proxy.put(Fault::once(Point::Commit, Way::SaysRollback));
    let mut tx = limiter.pool().begin().await.expect("begin");
    assert!(limiter.within(&mut tx).limit(("a", "k")).await.expect("a decision").is_allowed());
    tx.commit().await.expect("the driver reports a commit");
    assert_eq!(spent(&database.pool).await, 0.0);
}

/// The limiter sets its own time limit for a client that is slow to commit. A session that it ended has committed nothing.
#[tokio::test]
async fn a_late_commit_is_allowed_for_a_second_and_then_repeated() {
    let (database, pool) = database_with(&["idle_in_transaction_session_timeout = '50ms'"]).await;
    let proxy = Proxy::before(&database.url).await;
    let limiter = limiter(&proxy.url, |config| {
        config.connections = Connections::Pool;
        config.retry.deadline = Duration::from_secs(30);
    });
    for (late, retries) in [(300, 0), (2_500, 1)] {
        let before = spent(&pool).await;
        proxy.put(Fault::once(Point::Commit, Way::Delay(Duration::from_millis(late))));
        assert!(limiter.limit(("a", "k")).await.expect("a known outcome").is_allowed(), "{late} ms");
        assert_eq!((limiter.retries(), spent(&pool).await - before), (retries, 1.0), "{late} ms");
    }
}

#[tokio::test]
async fn an_engine_without_advisory_locks_is_migrated() {
    let database = Database::empty().await;
    let proxy = Proxy::before(&database.url).await;
    proxy.put(Fault::always(Point::AdvisoryLock, Way::Before(payload("no advisory locks"))));
    let pool = Database::pool(&proxy.url, 2).await;
    let report = migrate(&pool).await.expect("migrated without a lock");
    assert!(!report.applied.is_empty());
    assert_eq!(proxy.count(|seen| &seen.faults), 1, "asked once, and not again");
    assert!(migrate(&pool).await.expect("nothing to do").applied.is_empty());
    assert_eq!(database.rows().await, 0);
}

/// It is migrated statement by statement, and without an advisory lock, which it may not support.
#[tokio::test]
async fn an_engine_that_says_it_is_yugabytedb_is_migrated() {
    let database = Database::empty().await;
    let proxy = Proxy::before(&database.url).await;
    proxy.put(Fault::always(Point::Version, Way::Says(YUGABYTE)));
    proxy.put(Fault::always(Point::AdvisoryLock, Way::Before(payload("no advisory locks"))));
    let pool = Database::pool(&proxy.url, 2).await;
    assert!(!migrate(&pool).await.expect("migrated").applied.is_empty());
    assert!(migrate(&pool).await.expect("nothing to do").applied.is_empty());
    let versions = proxy.count(|seen| &seen.versions);
    assert_eq!(proxy.count(|seen| &seen.faults), versions, "advisory locks were requested");
    assert_eq!(database.rows().await, 0);
}

/// A server that reports to be YugabyteDB is treated like one: COMMIT is sent separately, and its errors are not taken as
/// certain.
#[tokio::test]
async fn the_engine_is_detected_once() {
    let (database, proxy) = behind_a_proxy().await;
    for (version, expected) in [(None, 0), (Some(YUGABYTE), 2)] {
        let limiter = limiter(&proxy.url, |config| config.engine = None);
        let before = proxy.count(|seen| &seen.commits);
        let asked = proxy.count(|seen| &seen.versions);
        if let Some(version) = version {
            proxy.put(Fault::always(Point::Version, Way::Says(version)));
        }
        for _ in 0..2 {
            assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
        }
        assert_eq!(proxy.count(|seen| &seen.commits) - before, expected, "{version:?}");
        assert_eq!(proxy.count(|seen| &seen.versions) - asked, 1, "{version:?}");
        if version.is_some() {
            proxy.put(Fault::once(Point::Commit, Way::After(payload("expired"))));
            let result = limiter.limit(("a", "k")).await;
            assert!(matches!(result, Err(Error::OutcomeUnknown { .. })), "{result:?}");
        }
        proxy.calm();
    }
    assert_eq!(spent(&database.pool).await, 5.0);
}

/// An error leaves no transaction open on the limiter's own connections, even if no other call follows.
#[tokio::test]
async fn a_failed_call_leaves_no_transaction_open() {
    let (database, proxy) = behind_a_proxy().await;
    let limiter = limiter(&format!("{}?application_name=limited", proxy.url), |config| {
        config.engine = Some(Engine::Yugabyte); // On this engine, a call always begins a transaction.
    });
    proxy.put(Fault::once(Point::Statement, Way::Before(payload("duplicate"))));
    assert!(matches!(limiter.limit(("a", "k")).await, Err(Error::Database { .. })));
    let open =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'limited'
        AND state <> 'idle'";
    let began = Instant::now();
    while sqlx::query_scalar::<_, i64>(open).fetch_one(&database.pool).await.expect("the backends") > 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "a transaction is left open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
