//! `settle` corrects an estimate that was taken to what was actually used.

use std::time::Duration;

use pg_limiter::{DenialMemory, Error, InvalidCall, Item, Limit, Limits};

use crate::support::{Database, Spans};

const YEAR: Duration = Duration::from_secs(8766 * 3600);

fn limits() -> Limits {
    Limits::new()
        .define("bucket", Limit::token_bucket(100, YEAR))
        .and_then(|limits| limits.define("window", Limit::fixed_window(100, YEAR).start(Duration::ZERO)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(100, YEAR)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(100, YEAR).shards(4)))
        .expect("limits")
}

#[tokio::test]
async fn settle_gives_back_unused_tokens_and_charges_extra_ones() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    for name in ["bucket", "window", "sliding", "sharded"] {
        for (key, used, left) in [("less", 10, 90.0), ("more", 70, 30.0), ("same", 40, 60.0), ("debt", 130, -30.0)] {
            for within in [false, true] {
                let estimate = Item::new(name, format!("{key}{within}")).count(40);
                assert!(limiter.limit(estimate.clone()).await.expect("a decision").is_allowed());
                let peek = estimate.clone();
                let settled = if within {
                    let mut tx = database.app.begin().await.expect("begin");
                    let settled = limiter.within(&mut tx).settle(estimate, used).await.expect("a balance");
                    tx.commit().await.expect("commit");
                    settled
                } else {
                    limiter.settle(estimate, used).await.expect("a balance")
                };
                let balance = limiter.peek(peek).await.expect("a balance").remaining();
                assert!((balance - left).abs() < 1e-3, "{name}, {key}: {balance} left");
                // With shards, the returned balance is an estimate.
                if name != "sharded" {
                    assert!((settled.remaining() - left).abs() < 1e-3, "{name}, {key}: {settled:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_rollback_undoes_settle() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    assert!(limiter.limit(("bucket", 7, 40)).await.expect("a decision").is_allowed());
    for used in [10, 70] {
        let mut tx = database.app.begin().await.expect("begin");
        let inside = limiter.within(&mut tx).settle(("bucket", 7, 40), used).await.expect("a balance");
        assert!((inside.remaining() - f64::from(100 - used)).abs() < 1e-3, "{inside:?}");
        tx.rollback().await.expect("roll back");
        let balance = limiter.peek(("bucket", 7)).await.expect("a balance").remaining();
        assert!((balance - 60.0).abs() < 1e-3, "{balance}");
    }
    // Like `credit` and `charge`, it is not idempotent.
    for left in [90.0, 100.0, 100.0] {
        let balance = limiter.settle(("bucket", 7, 40), 10_u64).await.expect("a balance").remaining();
        assert!((balance - left).abs() < 1e-3, "{balance}");
    }
}

/// `settle` is one statement, and is traced as one call.
#[tokio::test]
async fn settle_is_one_call() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    assert!(limiter.limit(("bucket", "k", 40)).await.expect("a decision").is_allowed());
    let (spans, before) = (Spans::default(), limiter.batches());
    let watched = crate::support::watch(spans.clone());
    for used in [10, 70] {
        let _ = limiter.settle(("bucket", "k", 40), used).await.expect("a balance");
    }
    drop(watched);
    assert_eq!(limiter.batches() - before, 2);
    let calls = spans.named("pg_limiter.call");
    assert_eq!(calls.len(), 2);
    for call in calls {
        assert_eq!((call.text("op"), call.text("transaction"), call.text("outcome")), ("settle", "own", "done"));
    }
}

/// A call that was denied before may take the tokens that `settle` gave back.
#[tokio::test]
async fn settle_forgets_remembered_denials() {
    let database = Database::migrated().await;
    let mut config = Database::config();
    config.remember_denials = Some(DenialMemory::default());
    let limiter = pg_limiter::Limiter::with_config(database.app.clone(), limits(), config);
    assert!(limiter.limit(("bucket", "k", 100)).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("bucket", "k")).await.expect("a decision").is_denied());
    let _ = limiter.settle(("bucket", "k", 100), 60).await.expect("a balance");
    assert!(limiter.limit(("bucket", "k", 40)).await.expect("a decision").is_allowed());
}

#[tokio::test]
async fn invalid_counts_are_rejected_by_settle() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    for (estimate, used, wrong) in
        [(10.0, -1.0, -1.0), (-1.0, 10.0, -1.0), (10.0, f64::INFINITY, f64::INFINITY), (1.0, 1e14, 1e14)]
    {
        let mut conn = database.app.acquire().await.expect("a connection");
        let errors = [
            limiter.settle(("bucket", "k", estimate), used).await.expect_err("refused"),
            limiter.within(&mut conn).settle(("bucket", "k", estimate), used).await.expect_err("refused"),
        ];
        for error in errors {
            let Error::Invalid(InvalidCall::Count { count, .. }) = error else { panic!("{error}") };
            assert_eq!(count, wrong);
        }
    }
    let error = limiter.settle(("nope", "k", 1), 2).await.expect_err("refused");
    assert!(matches!(error, Error::Invalid(InvalidCall::UnknownLimit { .. })), "{error}");
    assert_eq!(database.rows().await, 0);
}

/// A charge may leave a debt, so it must not be tried as a call that the bucket covers first.
#[tokio::test]
async fn a_lone_correction_is_one_statement() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    assert!(limiter.limit(("bucket", "k", 95)).await.expect("a decision").is_allowed());
    let before = limiter.batches();
    let _ = limiter.settle(("bucket", "k", 95), 120).await.expect("a balance");
    let _ = limiter.settle(("bucket", "k", 10), 5).await.expect("a balance");
    let _ = limiter.charge(["k", "l"].map(|key| Item::new("bucket", key).count(500))).await.expect("balances");
    assert_eq!(limiter.batches() - before, 3);
}
