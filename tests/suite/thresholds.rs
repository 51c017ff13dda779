//! Every mark that the use of a limit passes is reported by exactly one call.

use futures_util::future::join_all;
use pg_limiter::{Connections, Isolation, Item, Limit, Limiter, LimiterConfig, Limits};

use crate::support::Database;
use crate::support::gate::CENTURY;

/// The token bucket refills, so its use does not reach 1.
const MARKS: [f64; 5] = [0.001, 0.5, 0.8, 0.999, 1.0];
const CAPACITY: f64 = 60.0;
/// Three of them are a whole number only after rounding.
const COUNTS: [f64; 4] = [0.1, 0.7, 1.0, 0.3];

fn limits() -> Limits {
    Limits::new()
        .define("bucket", Limit::token_bucket(CAPACITY, CENTURY))
        .and_then(|limits| {
            limits.define("fixed", Limit::fixed_window(CAPACITY, CENTURY).start(std::time::Duration::ZERO))
        })
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(CAPACITY, CENTURY)))
        .expect("limits")
}

/// One limiter for each kind of connection and isolation level, as if of four processes.
fn limiters(database: &Database) -> Vec<Limiter> {
    let with = |(connections, isolation)| {
        let mut config = LimiterConfig::default();
        (config.connections, config.isolation) = (connections, isolation);
        config.retry.max_attempts = 10_000;
        config.retry.deadline = std::time::Duration::from_secs(60);
        Limiter::with_config(database.pool.clone(), limits(), config)
    };
    let ways = [
        (Connections::Own, Isolation::Serializable),
        (Connections::Own, Isolation::ReadCommitted),
        (Connections::Pool, Isolation::Serializable),
        (Connections::Pool, Isolation::ReadCommitted),
    ];
    ways.into_iter().map(with).collect()
}

/// Takes until the limits are used up, in one of three ways. Returns the limit and the mark for each report.
async fn caller(limiter: Limiter, nth: usize) -> Vec<(String, f64)> {
    let mut reports = Vec::new();
    let mut turn = nth;
    loop {
        turn += 1;
        let count = COUNTS[turn % COUNTS.len()];
        let items = ["bucket", "fixed", "sliding"].map(|limit| Item::new(limit, "k").count(count));
        let decision = match nth % 3 {
            0 => limiter.limit(items).await.expect("a decision"),
            // Every third transaction is rolled back: what it reports did not happen.
            1 => {
                let mut tx = limiter.pool().begin().await.expect("begin");
                let decided = limiter.within(&mut tx).limit(items).await;
                match decided {
                    Ok(decision) if decision.is_denied() || !turn.is_multiple_of(3) => {
                        if tx.commit().await.is_err() {
                            continue;
                        }
                        decision
                    }
                    _ => {
                        let _ = tx.rollback().await;
                        continue;
                    }
                }
            }
            _ => {
                let limits = limiter.clone();
                let unit = limiter.transaction(async move |tx| limits.within(tx).limit(items.clone()).await);
                unit.await.expect("a decision")
            }
        };
        for mark in MARKS {
            reports.extend(decision.crossed(mark).map(|state| (state.limit.to_string(), mark)));
        }
        // The smallest count is denied: nothing is left.
        if decision.is_denied() && count == 0.1 {
            return reports;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mark_is_reported_by_exactly_one_call() {
    let database = Database::migrated().await;
    let limiters = limiters(&database);
    let callers = (0..24).map(|nth| tokio::spawn(caller(limiters[nth % 4].clone(), nth / 4)));
    let mut reports: Vec<(String, f64)> = Vec::new();
    for reported in join_all(callers).await {
        reports.extend(reported.expect("no panic"));
    }
    reports.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    let marks = |limit: &str| if limit == "bucket" { MARKS[..4].to_vec() } else { MARKS.to_vec() };
    let of = |limit: &'static str| marks(limit).into_iter().map(move |mark| (limit.to_owned(), mark));
    let expected: Vec<(String, f64)> = ["bucket", "fixed", "sliding"].into_iter().flat_map(of).collect();
    assert_eq!(reports, expected);
}

#[tokio::test]
async fn only_calls_that_take_tokens_report_a_mark() {
    let database = Database::migrated().await;
    let limiter = Limiter::new(database.pool.clone(), limits());
    for limit in ["bucket", "fixed", "sliding"] {
        let of = |count: f64| Item::new(limit, "u").count(count);
        let checked = limiter.check(of(0.0)).await.expect("a decision");
        assert_eq!((checked.limits()[0].capacity, checked.limits()[0].used_fraction()), (CAPACITY, 0.0));
        assert_eq!(checked.crossed(0.5).count(), 0);
        let charged = limiter.charge(of(30.0)).await.expect("a balance");
        assert_eq!(charged.crossed(0.5).map(|state| &*state.limit).collect::<Vec<_>>(), [limit]);
        assert_eq!((charged.crossed(0.4).count(), charged.crossed(0.6).count()), (1, 0));
        assert!((charged.limits()[0].used_fraction() - 0.5).abs() < 1e-6);
        let denied = limiter.limit(of(31.0)).await.expect("a decision");
        assert!(denied.is_denied() && MARKS.iter().all(|mark| denied.crossed(*mark).next().is_none()));
        assert_eq!(limiter.peek(of(0.0)).await.expect("a balance").crossed(0.5).count(), 0);
        assert_eq!(limiter.credit(of(10.0)).await.expect("a balance").crossed(0.2).count(), 0);
        let again = limiter.limit(of(20.0)).await.expect("a decision");
        assert!(again.limits()[0].crossed(0.5), "a credit has lowered the use: {again:?}");
        assert_eq!([f64::NAN, f64::INFINITY, -1.0].map(|mark| again.crossed(mark).count()), [0, 0, 0]);
        let owed = limiter.charge(of(60.0)).await.expect("a balance");
        assert!(owed.limits()[0].used_fraction() > 1.0 && owed.crossed(1.0).count() == 1, "{owed:?}");
    }
}

#[tokio::test]
async fn a_limit_without_capacity_is_used_up() {
    let database = Database::migrated().await;
    let limit = Limit::token_bucket(1, CENTURY).capacity(0).build().expect("a limit");
    let limiter = Limiter::new(database.pool.clone(), Limits::new());
    let call = || pg_limiter::Call::from((("paced", limit), "u")).reserve();
    let reserved = limiter.limit(call()).await.expect("a decision");
    let state = &reserved.limits()[0];
    assert_eq!((state.capacity, state.used_fraction(), state.crossed(1.0)), (0.0, 1.0, false));
}
