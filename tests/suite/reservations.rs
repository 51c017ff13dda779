//! Reservations in the statement that locks the row, compared with sums computed by hand.

use std::time::Duration;

use pg_limiter::{Call, Item, Limit, Limits, Outcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::Database;
use crate::support::gate::{CENTURY, limiter};

const CAPACITY: f64 = 3.0;

/// Hardly anything flows in while the test runs.
fn limits() -> Limits {
    Limits::new()
        .define("bounded", Limit::token_bucket(1, CENTURY).capacity(CAPACITY).max_reserved(2.5))
        .and_then(|limits| limits.define("unbounded", Limit::token_bucket(1, CENTURY).capacity(CAPACITY)))
        .and_then(|limits| limits.define("none", Limit::token_bucket(1, CENTURY).capacity(0)))
        .expect("limits")
}

const NAMES: [(&str, f64, f64); 3] =
    [("bounded", CAPACITY, 2.5), ("unbounded", CAPACITY, f64::INFINITY), ("none", 0.0, f64::INFINITY)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_takes_its_count_and_waits_for_the_missing_tokens() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    let step = (0..3_usize, 0..12_u32, any::<bool>());
    let rounds = proptest::collection::vec(proptest::collection::vec(step, 1..30), 1..2);
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let handle = tokio::runtime::Handle::current();
    let round = std::cell::Cell::new(0);
    tokio::task::block_in_place(|| {
        runner.run(&rounds, |rounds| {
            round.set(round.get() + 1);
            handle.block_on(async {
                for steps in rounds {
                    let key = round.get().to_string();
                    let mut balances = NAMES.map(|(_, capacity, _)| capacity);
                    for (nth, quarters, reserve) in steps {
                        let (name, capacity, bound) = NAMES[nth];
                        let count = f64::from(quarters) / 4.0;
                        let bound = if reserve { bound } else { 0.0 };
                        if count > capacity + bound {
                            continue;
                        }
                        let item = Item::new(name, key.as_str()).count(count);
                        let call = if reserve { item.reserve() } else { Call::from(item) };
                        let decision = limiter.limit(call).await.expect("a decision");
                        let after = balances[nth] - count;
                        let centuries = |tokens: f64| CENTURY.mul_f64(tokens);
                        let near =
                            |wait: Duration, expected: Duration| wait.abs_diff(expected) < Duration::from_secs(600);
                        match decision.outcome() {
                            Outcome::Allowed => prop_assert!(after >= 0.0, "{name} {count} of {}", balances[nth]),
                            Outcome::Reserved { wait } => {
                                prop_assert!(reserve && after < 0.0 && after >= -bound);
                                prop_assert!(near(wait, centuries(-after)), "{wait:?} for {after}");
                            }
                            Outcome::Denied { retry_after } => {
                                prop_assert!(after < -bound, "{name} {count} of {}", balances[nth]);
                                prop_assert!(
                                    near(retry_after, centuries(-after - bound)),
                                    "{retry_after:?} for {after}"
                                );
                            }
                            _ => prop_assert!(false, "{decision:?}"),
                        }
                        if !decision.is_denied() {
                            balances[nth] = after;
                        }
                        prop_assert!(
                            (decision.remaining() - balances[nth]).abs() < 1e-5,
                            "{} {}",
                            decision.remaining(),
                            balances[nth]
                        );
                    }
                }
                Ok(())
            })
        })
    })
    .expect("all rounds");
}

/// Many concurrent reservations, each on its own bucket; in the first round the buckets are new.
#[tokio::test]
async fn concurrent_reservations_equal_consecutive_ones() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for round in 1..=4_u32 {
        let calls = (0..20).map(|nth| {
            let (name, ..) = NAMES[nth % 3];
            let limiter = limiter.clone();
            async move {
                (nth, limiter.limit(Item::new(name, format!("{nth}")).count(1.5).reserve()).await.expect("a decision"))
            }
        });
        for (nth, decision) in futures_util::future::join_all(calls).await {
            let (name, capacity, bound) = NAMES[nth % 3];
            let after = capacity - 1.5 * f64::from(round);
            assert_eq!(decision.is_denied(), after < -bound, "{name}, round {round}: {decision:?}");
            if !decision.is_denied() {
                let wait = decision.wait().unwrap_or_default();
                assert!(
                    wait.abs_diff(CENTURY.mul_f64((-after).max(0.0))) < Duration::from_secs(600),
                    "{name}: {wait:?}"
                );
            }
        }
    }
}

/// A bucket so deep in debt that the time until it is full cannot be represented.
#[tokio::test]
async fn endless_debt_is_accepted() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for _ in 0..3 {
        let decision = limiter.limit(Item::new("unbounded", "k").count(1e9).reserve()).await.expect("a decision");
        assert!(matches!(decision.outcome(), Outcome::Reserved { .. }));
    }
    let left = limiter.peek(("unbounded", "k")).await.expect("a balance").remaining();
    assert!((left + 3e9 - 3.0).abs() < 1.0, "{left}");
}
