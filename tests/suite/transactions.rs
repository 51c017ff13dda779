//! Calls in the caller's transaction, in the limiter's own, and in a unit of work.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pg_limiter::sqlx::Connection;
use pg_limiter::{Call, Error, Item, Limit, Limiter, Limits, Outcome, TransactionLimiter};

use crate::support::{Database, Events, watch};
use crate::support::{pooler, sqlx};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    let define = || -> Result<Limits, pg_limiter::InvalidLimit> {
        Limits::new()
            .define("messages", Limit::token_bucket(10, HOUR))?
            .define("pages", Limit::fixed_window(5, HOUR))?
            .define("searches", Limit::sliding_window(4, HOUR).resolution(6))?
            .define("paced", Limit::token_bucket(1, Duration::from_secs(1)).max_reserved(3))
    };
    define().expect("limits")
}

async fn limiter() -> (Database, Limiter) {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    (database, limiter)
}

/// Asserts that the balance is as expected; the refill during a test is far below the tolerance.
fn near(balance: f64, expected: f64) {
    assert!((balance - expected).abs() < 0.05, "{balance}, expected {expected}");
}

#[derive(Debug, thiserror::Error)]
enum AppError {
    #[error("the limiter: {0}")]
    Limiter(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("the order is odd")]
    Odd,
}

#[tokio::test]
async fn a_rollback_gives_the_tokens_back_and_a_commit_keeps_them() {
    let (database, limiter) = limiter().await;
    database.execute("CREATE TABLE orders (id int)").await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        limiter.reset(("messages", "u1")).await.expect("reset");
        let begin = || sqlx::AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
        let mut tx = database.app.begin_with(begin()).await.expect("begin");
        let decision = limiter.within(&mut tx).limit(("messages", "u1", 4.0)).await.expect("a decision");
        near(decision.remaining(), 6.0);
        sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *tx).await.expect("insert");
        near(limiter.within(&mut tx).peek(("messages", "u1")).await.expect("a balance").remaining(), 6.0);
        tx.rollback().await.expect("rollback");
        near(limiter.peek(("messages", "u1")).await.expect("a balance").remaining(), 10.0);

        let mut tx = database.app.begin_with(begin()).await.expect("begin");
        let permit = limiter.within(&mut tx).limit(("messages", "u1", 4.0)).await.expect("a decision").enforce();
        assert_eq!(permit.expect("a permit").wait, None);
        tx.commit().await.expect("commit");
        near(limiter.peek(("messages", "u1")).await.expect("a balance").remaining(), 6.0);
    }
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&database.pool).await.expect("count");
    assert_eq!(orders, 0);
}

#[tokio::test]
async fn a_savepoint_gives_back_what_was_taken_within_it() {
    let (database, limiter) = limiter().await;
    let mut tx = database.app.begin().await.expect("begin");
    let _ = limiter.within(&mut tx).limit(("messages", "u1", 1.0)).await.expect("a decision");
    let mut inner = tx.begin().await.expect("savepoint");
    let _ = limiter.within(&mut inner).limit(("messages", "u1", 5.0)).await.expect("a decision");
    inner.rollback().await.expect("rollback");
    tx.commit().await.expect("commit");
    near(limiter.peek(("messages", "u1")).await.expect("a balance").remaining(), 9.0);
}

#[tokio::test]
async fn several_limits_are_charged_all_or_none() {
    let (_database, limiter) = limiter().await;
    let call = || {
        Call::from([
            Item::new("messages", "u1").count(2),
            Item::new("pages", "u1"),
            Item::new("searches", "u1").count(3),
        ])
    };
    assert_eq!(limiter.limit(call()).await.expect("a decision").outcome(), Outcome::Allowed);
    let decision = limiter.limit(call()).await.expect("a decision");
    assert_eq!(decision.denied_by(), ["searches"]);
    let states: Vec<(&str, bool)> = decision.limits().iter().map(|state| (&*state.limit, state.denied)).collect();
    assert_eq!(states, [("messages", false), ("pages", false), ("searches", true)]);
    let balances = limiter.peek(call()).await.expect("balances");
    near(balances[0], 8.0);
    near(balances[1], 4.0);
    near(balances[2], 1.0);
    let error = decision.enforce().expect_err("a denial");
    let denied = error.denied().expect("a denial");
    assert_eq!(denied.limits.iter().map(|name| &**name).collect::<Vec<_>>(), ["searches"]);
    assert!(denied.to_string().contains("searches") && !denied.to_string().contains("u1"), "{denied}");
}

#[tokio::test]
async fn the_same_bucket_named_twice_counts_twice() {
    let (_database, limiter) = limiter().await;
    let twice =
        |count: f64| Call::from([Item::new("messages", "u1").count(count), Item::new("messages", "u1").count(count)]);
    let decision = limiter.limit(twice(3.0)).await.expect("a decision");
    assert_eq!(decision.limits().len(), 2);
    near(decision.remaining(), 4.0);
    assert!(limiter.limit(twice(3.0)).await.expect("a decision").is_denied());
    let error = limiter.limit(twice(6.0)).await.expect_err("never possible");
    assert!(error.to_string().contains("the count 12 can never be served"), "{error}");
}

#[tokio::test]
async fn every_operation_works_in_both_forms() {
    let (database, limiter) = limiter().await;
    let bare = TransactionLimiter::new(limits());
    let bare = if pooler::is_asked_for() { bare.with_unnamed_statements() } else { bare };
    for limit in ["messages", "pages", "searches"] {
        let full = limiter.limits().get(limit).expect("defined").capacity();
        let mut tx = database.app.begin().await.expect("begin");
        assert!(bare.within(&mut tx).check((limit, "k", 2.0)).await.expect("a decision").is_allowed());
        near(bare.within(&mut tx).charge((limit, "k", full + 2.0)).await.expect("balances").remaining(), -2.0);
        assert!(bare.within(&mut tx).limit((limit, "k", 0.0)).await.expect("a decision").is_denied(), "while in debt");
        near(bare.within(&mut tx).peek((limit, "k")).await.expect("balances").remaining(), -2.0);
        near(bare.within(&mut tx).credit((limit, "k", 3.0)).await.expect("balances").remaining(), 1.0);
        near(bare.within(&mut tx).credit((limit, "k", 99.0)).await.expect("balances").remaining(), full);
        tx.commit().await.expect("commit");

        near(limiter.charge((limit, "k", 1.0)).await.expect("balances").remaining(), full - 1.0);
        assert!(limiter.check((limit, "k", full)).await.expect("a decision").is_denied());
        limiter.reset((limit, "k")).await.expect("reset");
        near(limiter.peek((limit, "k")).await.expect("balances").remaining(), full);
        near(limiter.credit((limit, "k", 1.0)).await.expect("balances").remaining(), full);
        assert_eq!(database.rows().await, 0, "a credit creates no row");
        for key in ["a", "b", "c"] {
            let _ = limiter.limit((limit, key)).await.expect("a decision");
        }
        let _ = limiter.limit(("paced", "a")).await.expect("a decision");
        assert_eq!(limiter.reset_all_keys(limit).await.expect("reset"), 3);
        assert_eq!(database.rows().await, 1);
        limiter.reset(("paced", "a")).await.expect("reset");
    }
}

#[tokio::test]
async fn reservations_return_their_wait() {
    let (_database, limiter) = limiter().await;
    let reserve = || Item::new("paced", "k").reserve();
    assert_eq!(limiter.limit(reserve()).await.expect("a decision").outcome(), Outcome::Allowed);
    for nth in 1..=3 {
        let decision = limiter.limit(reserve()).await.expect("a decision");
        let Outcome::Reserved { wait } = decision.outcome() else { panic!("{decision:?}") };
        assert!(wait <= Duration::from_secs(nth) && wait > Duration::from_secs(nth - 1), "{wait:?}");
        assert_eq!(decision.enforce().expect("a permit").wait, Some(wait));
    }
    let decision = limiter.limit(reserve()).await.expect("a decision");
    assert!(decision.is_denied(), "the fourth reservation exceeds max_reserved");
    assert!(decision.retry_after().expect("a time") <= Duration::from_secs(1), "it fits once one is refilled");
}

/// PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, and not with an error.
#[tokio::test]
async fn an_aborted_transaction_is_never_reported_as_committed() {
    let (database, limiter) = limiter().await;
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)").await;
    let result = limiter
        .transaction(async |tx| {
            let _ = limiter.within(tx).limit(("messages", "u1")).await?;
            let ignored = sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *tx).await;
            assert!(ignored.is_err());
            Ok::<_, AppError>(())
        })
        .await;
    assert!(matches!(result, Err(AppError::Limiter(Error::Aborted))), "{result:?}");
    near(limiter.peek(("messages", "u1")).await.expect("a balance").remaining(), 10.0);

    // In the caller's own transaction, the next call returns the error.
    let mut tx = database.app.begin().await.expect("begin");
    let _ = sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *tx).await;
    let error = limiter.within(&mut tx).limit(("messages", "u1")).await.expect_err("no decision");
    assert!(matches!(error, Error::Database { .. }) && !error.is_retryable(), "{error}");
    tx.rollback().await.expect("rollback");
}

#[tokio::test]
async fn a_unit_of_work_commits_or_rolls_back_as_a_whole() {
    let (database, limiter) = limiter().await;
    database.execute("CREATE TABLE orders (id int)").await;
    let order = async |odd: bool| {
        limiter
            .transaction(async |tx| {
                limiter.within(tx).limit(("pages", "u1", 2.0)).await?.enforce()?;
                sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *tx).await?;
                if odd { Err(AppError::Odd) } else { Ok(()) }
            })
            .await
    };
    assert!(order(false).await.is_ok());
    assert!(matches!(order(true).await, Err(AppError::Odd)));
    assert!(order(false).await.is_ok());
    assert!(matches!(order(false).await, Err(AppError::Limiter(Error::Denied(denied))) if denied.retry_after <= HOUR));
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&database.pool).await.expect("count");
    assert_eq!(orders, 2);
    near(limiter.peek(("pages", "u1")).await.expect("a balance").remaining(), 1.0);
}

/// Write skew on the application's own table: every conflict reruns the whole unit of work.
#[tokio::test(flavor = "multi_thread")]
async fn a_unit_of_work_is_retried_as_a_whole() {
    let (database, limiter) = limiter().await;
    database.execute("CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)").await;
    let runs = std::sync::Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|nth| {
            let (limiter, runs) = (limiter.clone(), runs.clone());
            // In a spawned task, to check that the future is `Send`.
            tokio::spawn(async move {
                let within = limiter.clone();
                limiter
                    .transaction(async move |tx| {
                        let limiter = &within;
                        runs.fetch_add(1, Ordering::Relaxed);
                        limiter.within(tx).limit(("messages", format!("u{nth}"))).await?.enforce()?;
                        let n: i32 = sqlx::query_scalar("SELECT n FROM counter").fetch_one(&mut *tx).await?;
                        sqlx::query("UPDATE counter SET n = $1").bind(n + 1).execute(&mut *tx).await?;
                        Ok::<_, AppError>(())
                    })
                    .await
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task").expect("committed");
    }
    let n: i32 = sqlx::query_scalar("SELECT n FROM counter").fetch_one(&database.pool).await.expect("the counter");
    assert_eq!(n, 8);
    assert!(runs.load(Ordering::Relaxed) > 8, "nothing was retried");
    assert_eq!(u64::from(runs.load(Ordering::Relaxed)), 8 + limiter.retries());
    near(limiter.peek(("messages", "u0")).await.expect("a balance").remaining(), 9.0);
}

#[tokio::test]
async fn a_conflict_in_the_callers_transaction_is_returned_and_not_retried() {
    let (database, limiter) = limiter().await;
    let _ = limiter.limit(("messages", "u1")).await.expect("a decision");
    let mut tx = database.app.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("begin");
    let _ = limiter.within(&mut tx).peek(("messages", "u1")).await.expect("a balance");
    let _ = limiter.limit(("messages", "u1")).await.expect("a decision");
    let error = limiter.within(&mut tx).limit(("messages", "u1")).await.expect_err("a conflict");
    assert!(matches!(error, Error::Conflict { .. }) && error.is_retryable(), "{error}");
    tx.rollback().await.expect("rollback");
}

#[tokio::test]
async fn the_limiters_own_calls_end_by_their_deadline() {
    let database = Database::migrated().await;
    let mut config = Database::config();
    let limiter = Limiter::with_config(database.app.clone(), limits(), config.clone());
    config.retry.deadline = Duration::from_millis(300);
    let hurried = Limiter::with_config(database.app.clone(), limits(), config);
    let _ = limiter.limit(("messages", "u1")).await.expect("a decision");
    let mut holder = database.app.begin().await.expect("begin");
    let _ = limiter.within(&mut holder).limit(("messages", "u1")).await.expect("a decision");
    let error = hurried.limit(("messages", "u1")).await.expect_err("the row is held");
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    holder.rollback().await.expect("rollback");
    let _ = limiter.limit(("messages", "u1")).await.expect("it recovers automatically");
    near(limiter.peek(("messages", "u1")).await.expect("a balance").remaining(), 8.0);
}

#[tokio::test]
async fn exhausted_retries_report_attempts_and_duration() {
    let events = Events::default();
    let _traced = watch(events.clone());
    let database = Database::migrated().await;
    let mut config = Database::config();
    config.retry.max_attempts = 3;
    let limiter = Limiter::with_config(database.app.clone(), limits(), config);
    database.rivals_always_win().await;
    let error = limiter.limit(("messages", "u1")).await.expect_err("conflicts only");
    assert!(matches!(error, Error::RetriesExhausted { attempts: 3, .. }), "{error}");
    assert!(error.to_string().contains("after 3 attempts in"), "{error}");
    assert_eq!(limiter.retries(), 2);
    let told = events.told();
    assert_eq!(told.matches("retrying a transaction").count(), 2, "{told}");
    assert!(told.contains("attempt=3") && !told.contains("u1"), "{told}");
    let error: AppError = limiter
        .transaction(async |tx| {
            let _ = limiter.within(tx).limit(("messages", "u1")).await?;
            Ok::<_, AppError>(())
        })
        .await
        .expect_err("conflicts only");
    assert!(matches!(error, AppError::Limiter(Error::Conflict { .. })), "{error}");
}
