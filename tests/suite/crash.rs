//! A server that crashes under load: every decision that was returned is on its disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pg_limiter::embedded::Server;
use pg_limiter::sqlx::{self, AssertSqlSafe, PgPool};
use pg_limiter::{Error, Isolation, Limit, Limiter, LimiterConfig, Limits};

use crate::support::payloads::payload;
use crate::support::proxy::{Fault, Point, Proxy, Way};
use crate::support::server_config;

const CAPACITY: f64 = 1e9;

fn limiter(pool: &PgPool, isolation: Isolation) -> Limiter {
    let century = Duration::from_secs(36_525 * 86_400);
    let limits = Limits::new().define("a", Limit::token_bucket(1e-6, century).capacity(CAPACITY)).expect("a limit");
    let mut config = LimiterConfig::default();
    config.isolation = isolation;
    config.retry.deadline = Duration::from_secs(20);
    Limiter::with_config(pool.clone(), limits, config)
}

/// The limiters' backends, without the one of `pool`, and whether one of them has unlocked its rows before they were on disk.
async fn backends(pool: &PgPool) -> (Vec<i32>, bool) {
    let sql = "SELECT coalesce(array_agg(pid), '{}'), coalesce(bool_or(query ~ 'set_config|emit_message'), false)
        FROM pg_stat_activity WHERE query ~ '_take_|emit_message' AND pid <> pg_backend_pid()";
    sqlx::query_as(sql).fetch_one(pool).await.expect("the backends")
}

/// Killing a backend makes PostgreSQL end all others, drop its memory, and recover from its WAL. The WAL writer is slowed
/// down, so that a commit without a waiting session is not on disk.
///
/// Two handles use the same row, as two processes do. Under contention, the engine unlocks rows before they are on disk, and
/// returns the decisions after they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_that_were_returned_survive_a_crash() {
    let mut config = server_config();
    config.settings.push(("wal_writer_delay".into(), "10s".into()));
    config.settings.push(("wal_writer_flush_after".into(), "1GB".into()));
    let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").expect("a server");
    let pool = PgPool::connect(&server.url("postgres")).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted, Isolation::Serializable] {
        let limiters = [limiter(&pool, isolation), limiter(&pool, isolation)];
        let before = limiters[0].peek(("a", "k")).await.expect("a balance").remaining();
        let admitted = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..32)
            .map(|nth| {
                let (limiter, admitted) = (limiters[nth % 2].clone(), Arc::clone(&admitted));
                tokio::spawn(async move {
                    // Until the crash.
                    while let Ok(decision) = limiter.limit(("a", "k")).await {
                        assert!(decision.is_allowed());
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let (mut seen, mut is_quick) = (Vec::new(), false);
        while (isolation == Isolation::Serializable && !is_quick) || admitted.load(Ordering::Relaxed) < 2_000 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            (seen, is_quick) = backends(&pool).await;
        }
        // The server runs the program, wherever it is. This connection is lost, too.
        let kill = format!("COPY (SELECT) TO PROGRAM 'kill -9 {}'", seen[0]);
        let killed = sqlx::raw_sql(AssertSqlSafe(kill)).execute(&pool).await;
        assert!(killed.as_ref().err().is_none_or(|error| !error.to_string().contains("program")), "{killed:?}");
        // Some calls are retried once the server is back; the books need only those that returned a decision.
        limiters[0].close().await;
        limiters[1].close().await;
        for task in tasks {
            task.await.expect("a task");
        }
        let after = limiter(&pool, isolation);
        let left = loop {
            match after.peek(("a", "k")).await {
                Ok(balance) => break balance.remaining(),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        let admitted = admitted.load(Ordering::Relaxed) as f64;
        assert!(before - left >= admitted, "{isolation:?}: {admitted} were admitted, {} are spent", before - left);
        // The server is private, and its WAL short: nothing else was lost or added.
        assert!(before - left <= admitted + 3.0 * 1024.0, "{isolation:?}: {admitted} of {}", before - left);
    }
}

/// The server crashes after a decision that did not wait for the disk, and before the flush. A flush by a session that was
/// opened later proves nothing about the decision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_whose_session_ended_before_the_flush_has_an_unknown_outcome() {
    let mut config = server_config();
    config.settings.push(("autovacuum".into(), "off".into())); // It flushes when it commits.
    let server = tokio::task::spawn_blocking(move || Server::start(&config)).await.expect("a task").expect("a server");
    let pool = PgPool::connect(&server.url("postgres")).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let proxy = Proxy::before(&server.url("postgres")).await;
    for isolation in [Isolation::Serializable, Isolation::ReadCommitted] {
        let through_proxy = PgPool::connect_lazy(&proxy.url).expect("a URL");
        let limiter = limiter(&through_proxy, isolation);
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
        // After a conflict, the next decisions unlock their rows before they are on disk.
        proxy.put(Fault::once(Point::Statement, Way::Before(payload("conflict"))));
        assert!(limiter.limit(("a", "k")).await.expect("a decision").is_allowed());
        let before = left(&pool).await;
        stop_the_wal_writer(&pool).await;
        // Long enough for idle connections to be checked meanwhile.
        proxy.put(Fault::once(Point::Statement, Way::Late(Duration::from_secs(4))));
        let (statements, crashing) = (proxy.count(|seen| &seen.statements), pool.clone());
        let call = tokio::spawn(async move { limiter.limit(("a", "k")).await });
        while proxy.count(|seen| &seen.statements) == statements || left(&crashing).await == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let kill = "COPY (SELECT) TO PROGRAM 'kill -9 $PPID'";
        let _ = sqlx::raw_sql(kill).execute(&crashing).await; // This connection is lost, too.
        let answer = call.await.expect("a task");
        assert!(matches!(answer, Err(Error::OutcomeUnknown { .. })), "{isolation:?}: {answer:?}");
        assert_eq!(left(&pool).await, before, "{isolation:?}: the crash came too late to lose anything");
    }
}

/// Nothing flushes now but a session that waits for it. A longer `wal_writer_delay` is not enough: a commit wakes the WAL
/// writer once a page is full. The server ends a stopped process 5 s after a crash.
async fn stop_the_wal_writer(pool: &PgPool) {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    let pid: i32 = sqlx::query_scalar(sql).fetch_one(pool).await.expect("the WAL writer");
    let stop = format!("COPY (SELECT) TO PROGRAM 'cat; kill -STOP {pid}'");
    sqlx::raw_sql(AssertSqlSafe(stop)).execute(pool).await.expect("a stopped WAL writer");
}

/// The balance in the table, once the server answers.
async fn left(pool: &PgPool) -> f64 {
    let sql = "SELECT value FROM rate_limit.rate_limits WHERE name = 'a' AND key = 'k'";
    loop {
        match sqlx::query_scalar(sql).fetch_one(pool).await {
            Ok(value) => return value,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
