//! Waiting for a permit: when waiters are allowed, how often they query the database, and what a waiter that gives up leaves.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::{Call, Decision, Error, InvalidCall, Item, Limit, Limiter, Limits, WaitConfig};

use crate::support::gate::{CENTURY, limiter};
use crate::support::{Database, Spans, sqlx, watch};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn limits() -> Limits {
    Limits::new()
        .define("paced", Limit::token_bucket(20, SECOND).capacity(1))
        .and_then(|limits| limits.define("none", Limit::token_bucket(20, SECOND).capacity(0)))
        .and_then(|limits| limits.define("slow", Limit::token_bucket(1, SECOND).capacity(1)))
        .and_then(|limits| limits.define("windows", Limit::fixed_window(3, SECOND).start(Duration::ZERO)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(10, SECOND).resolution(10)))
        .and_then(|limits| limits.define("owing_one", Limit::token_bucket(20, SECOND).capacity(1).max_reserved(1)))
        .and_then(|limits| limits.define("owing_none", Limit::token_bucket(20, SECOND).capacity(1).max_reserved(0)))
        .and_then(|limits| limits.define("bucket", Limit::token_bucket(1, CENTURY)))
        .and_then(|limits| limits.define("window", Limit::fixed_window(1, CENTURY)))
        .and_then(|limits| limits.define("slide", Limit::sliding_window(1, CENTURY)))
        .and_then(|limits| limits.define("minutes", Limit::token_bucket(1, MINUTE)))
        .and_then(|limits| limits.define("enough", Limit::token_bucket(1000, CENTURY)))
        .expect("limits")
}

/// The database's clock, in microseconds.
async fn clock(database: &Database) -> i64 {
    let sql = "SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint";
    sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("the clock")
}

/// Makes all calls. Returns the time before the first call, the sorted times at which calls were allowed, and the denials.
/// Times are on the database's clock.
async fn starts<'a>(
    database: &Database,
    calls: impl IntoIterator<Item = (&'a Limiter, Call, Duration)>,
) -> (i64, Vec<i64>, Vec<Decision>) {
    let before = clock(database).await;
    let waiting = calls.into_iter().map(|(limiter, call, max_wait)| async move {
        let decision = limiter.until_ready(call, max_wait).await.expect("a decision");
        (decision, clock(database).await)
    });
    let answers = tokio::time::timeout(MINUTE * 5, join_all(waiting)).await.expect("all calls have an answer");
    let (allowed, denied): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(decision, _)| decision.is_allowed());
    assert!(allowed.iter().all(|(decision, _)| decision.retry_after().is_none()));
    let mut starts: Vec<i64> = allowed.into_iter().map(|(_, at)| at).collect();
    starts.sort_unstable();
    (before, starts, denied.into_iter().map(|(decision, _)| decision).collect())
}

/// The total number of attempts of all waiters. (Attempts at the same moment share a statement.)
fn asked(spans: &Spans) -> u64 {
    let waiting = spans.named("pg_limiter.call").into_iter().filter(|span| span.text("op") == "until_ready");
    waiting.map(|span| span.number("attempts") as u64).sum()
}

/// Whether at every time at most one call plus the refill by then was allowed.
fn are_paced(before: i64, starts: &[i64], gap: Duration) -> bool {
    let gap = i64::try_from(gap.as_micros()).expect("short");
    (0..).zip(starts).all(|(nth, at)| *at >= before + nth * gap)
}

#[tokio::test]
async fn fifty_waiters_are_allowed_at_the_limits_rate_with_one_query_each() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    for name in ["paced", "none"] {
        // Two handles as two processes; one of the calls does not wait.
        let handles = [0; 2].map(|_| limiter(&database.app, limits(), |_| {}));
        let calls = (0..50).map(|nth| (&handles[nth % 2], Call::from((name, "k")), MINUTE));
        let (before, starts, denied) = starts(&database, calls).await;
        assert_eq!((starts.len(), denied.len()), (50, 0));
        assert!(are_paced(before, &starts, SECOND / 20), "{name}, from {before} on: {starts:?}");
    }
    assert_eq!(asked(&spans), 100);
}

#[tokio::test]
async fn a_reservation_is_ready_by_the_deadline_or_not_taken() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    let wait = SECOND * 3 / 2;
    // All are decided at one moment, in one statement: allowed now, in a second, and in two.
    let calls = (0..5).map(|_| (&limiter, Call::from(("slow", "k")), wait));
    let (before, starts, denied) = starts(&database, calls).await;
    assert_eq!((starts.len(), denied.len(), limiter.batches()), (2, 3, 1));
    assert!(are_paced(before, &starts, SECOND), "{before}: {starts:?}");
    for denied in denied {
        let retry_after = denied.retry_after().expect("a time");
        assert!(denied.is_denied() && retry_after.abs_diff(SECOND * 2) < SECOND / 1000, "{retry_after:?}");
        assert_eq!(denied.denied_by(), ["slow"]);
    }
}

#[tokio::test]
async fn a_call_that_cannot_meet_its_deadline_is_denied_at_once_and_not_charged() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for name in ["bucket", "window", "slide"] {
        assert!(limiter.until_ready((name, "k"), Duration::ZERO).await.expect("a decision").is_allowed());
        let (asked, rest) = (limiter.batches(), limiter.peek((name, "k")).await.expect("a balance").remaining());
        for max_wait in [Duration::ZERO, SECOND * 1000] {
            let waiting = limiter.until_ready((name, "k"), max_wait);
            let denied = tokio::time::timeout(MINUTE * 3, waiting).await.expect("at once").expect("a decision");
            assert!(denied.is_denied(), "{name}: {denied:?}");
            assert_eq!(denied.denied_by(), [name]);
            // `retry_after` is the same as for a plain call: the time until the bucket has the tokens.
            let plain = limiter.limit((name, "k")).await.expect("a decision").retry_after().expect("a time");
            let told = denied.retry_after().expect("a time");
            assert!(told.abs_diff(plain) < MINUTE, "{name}: {told:?} and {plain:?}");
        }
        assert_eq!(limiter.batches(), asked + 5, "one statement for each");
        let left = limiter.peek((name, "k")).await.expect("a balance").remaining();
        assert!((left - rest).abs() < 1e-6 && left >= 0.0, "{name}: {rest}, then {left}");
    }
}

#[tokio::test]
async fn waiters_on_a_fixed_window_wait_for_a_window_with_room() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    let calls = (0..10).map(|_| (&limiter, Call::from(("windows", "k")), SECOND * 30));
    let (before, starts, _) = starts(&database, calls).await;
    assert_eq!(starts.len(), 10);
    // A window begins with each second.
    let opened = |nth: i64| (before / 1_000_000 + nth / 3) * 1_000_000;
    assert!((0..).zip(&starts).all(|(nth, at)| *at >= opened(nth)), "{before}: {starts:?}");
    assert_eq!(asked(&spans), 10);
}

/// Without jitter, all calls would start when the window opens.
#[tokio::test]
async fn jitter_spreads_the_waiters_of_one_window() {
    let database = Database::migrated().await;
    let twenty = limits().define("twenty", Limit::fixed_window(20, SECOND).start(Duration::ZERO)).expect("a limit");
    let limiter = limiter(&database.app, twenty, |_| {});
    let mut wait = WaitConfig::up_to(MINUTE);
    wait.jitter = 1.0;
    let before = clock(&database).await;
    let waiting = (0..60).map(|_| async {
        assert!(limiter.until_ready(("twenty", "k"), wait).await.expect("a decision").is_allowed());
        clock(&database).await
    });
    let mut starts = join_all(waiting).await;
    starts.sort_unstable();
    let opened = |nth: i64| (before / 1_000_000 + nth / 20) * 1_000_000;
    assert!((0..).zip(&starts).all(|(nth, at)| *at >= opened(nth)), "never early: {before}: {starts:?}");
    // It is very unlikely that 20 calls at random times of a second all fall into its first fifth.
    assert!(starts[59] > opened(59) + 200_000, "{before}: {starts:?}");
}

/// If the wait is shorter than a period, nothing is reserved, because the next window might open too late.
#[tokio::test]
async fn waiters_line_up_for_a_window_that_opens_in_time() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for key in ["a", "b", "c"] {
        let before_these = asked(&spans);
        let calls = (0..8).map(|_| (&limiter, Call::from(("windows", key)), SECOND * 99 / 100));
        let (before, starts, denied) = starts(&database, calls).await;
        assert!(starts.len() >= 3 && starts.len() <= 6 && starts.len() + denied.len() == 8, "{starts:?} {denied:?}");
        let opened = |nth: i64| (before / 1_000_000 + nth / 3) * 1_000_000;
        assert!((0..).zip(&starts).all(|(nth, at)| *at >= opened(nth)), "{before}: {starts:?}");
        let asked = asked(&spans) - before_these;
        assert!(asked <= 24, "{asked} times");
        let left = limiter.peek(("windows", key)).await.expect("a balance").remaining();
        assert!(left >= 0.0, "{left}");
    }
}

#[tokio::test]
async fn only_the_first_waiter_on_a_sliding_window_queries() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    let calls = (0..40).map(|_| (&limiter, Call::from(("sliding", "k")), MINUTE));
    let (before, starts, denied) = starts(&database, calls).await;
    assert_eq!((starts.len(), denied.len()), (40, 0));
    // At most 10 in any period less one part.
    assert!((1..4).all(|nth| starts[10 * nth] >= before + 900_000 * nth as i64), "{before}: {starts:?}");
    // Each call queries on arrival, at its turn, and when the tokens are available, but not whenever another call is allowed.
    assert!(asked(&spans) <= 3 * 40, "{} times", asked(&spans));
}

#[tokio::test]
async fn several_processes_share_a_sliding_window_without_a_herd() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    let handles = [0; 3].map(|_| limiter(&database.app, limits(), |_| {}));
    let calls = (0..24).map(|nth| (&handles[nth % 3], Call::from(("sliding", "k")), MINUTE));
    let (before, starts, denied) = starts(&database, calls).await;
    assert_eq!((starts.len(), denied.len()), (24, 0));
    assert!(starts[10] >= before + 900_000 && starts[20] >= before + 1_800_000, "{before}: {starts:?}");
    // At most one call of each process competes for the same tokens.
    assert!(asked(&spans) <= 24 * 5, "{} times", asked(&spans));
}

#[tokio::test]
async fn a_call_waits_for_all_of_its_limits_and_charges_all_or_none() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for (nth, names) in [["paced", "windows"], ["paced", "sliding"]].into_iter().enumerate() {
        let items = || names.map(|name| Item::new(name, nth.to_string()));
        let calls = (0..14).map(|_| (&limiter, Call::from(items()), MINUTE));
        let (before, starts, _) = starts(&database, calls).await;
        assert_eq!(starts.len(), 14);
        assert!(are_paced(before, &starts, SECOND / 20), "{before}: {starts:?}");
        match names[1] {
            "windows" => {
                let opened = |nth: i64| (before / 1_000_000 + nth / 3) * 1_000_000;
                assert!((0..).zip(&starts).all(|(nth, at)| *at >= opened(nth)), "{before}: {starts:?}");
            }
            _ => assert!(starts[10] >= before + 900_000, "{before}: {starts:?}"),
        }
    }
    for name in ["bucket", "window", "slide"] {
        let items = [Item::new("enough", "k"), Item::new(name, "k")];
        assert!(limiter.until_ready(items.clone(), SECOND).await.expect("a decision").is_allowed());
        let rest = limiter.peek(("enough", "k")).await.expect("a balance").remaining();
        let denied = limiter.until_ready(items, SECOND).await.expect("a decision");
        assert!(denied.is_denied());
        assert_eq!(denied.denied_by(), [name]);
        let left = limiter.peek(("enough", "k")).await.expect("a balance").remaining();
        assert!((left - rest).abs() < 1e-3, "{rest}, then {left}");
    }
}

#[tokio::test]
async fn waiters_never_exceed_the_debt_that_the_limit_allows() {
    let spans = Spans::default();
    let _traced = watch(spans.clone());
    let database = Database::migrated().await;
    database
        .execute("ALTER TABLE rate_limit.rate_limits ADD CONSTRAINT debts CHECK (value >= -1.000001) NOT VALID")
        .await;
    database
        .execute(
            "ALTER TABLE rate_limit.rate_limits ADD CONSTRAINT none CHECK (value >= -0.000001 OR name <> 'owing_none')",
        )
        .await;
    for (nth, name) in [(1, "owing_one"), (2, "owing_none")] {
        let limiter = limiter(&database.app, limits(), |_| {});
        let calls = (0..20).map(|_| (&limiter, Call::from((name, "k")), MINUTE));
        let (before, starts, denied) = starts(&database, calls).await;
        assert_eq!((starts.len(), denied.len()), (20, 0));
        assert!(are_paced(before, &starts, SECOND / 20), "{name}: {before}: {starts:?}");
        assert!(asked(&spans) <= nth * 3 * 20, "{name}: {} times", asked(&spans));
    }
}

#[tokio::test]
async fn a_dropped_waiter_has_spent_its_reservation() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    assert!(limiter.limit(("minutes", "k")).await.expect("a decision").is_allowed());
    let waiting = limiter.clone();
    let waiting = tokio::spawn(async move { waiting.until_ready(("minutes", "k"), MINUTE * 3).await });
    let balance = async || limiter.peek(("minutes", "k")).await.expect("a balance").remaining();
    while balance().await > -0.5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.abort();
    assert!(waiting.await.expect_err("dropped").is_cancelled());
    assert!(balance().await < -0.2);
    // The dropped call's slot is not given to another call: the next one gets the slot after it.
    let denied = limiter.until_ready(("minutes", "k"), MINUTE).await.expect("a decision");
    let retry_after = denied.retry_after().expect("a time");
    assert!(denied.is_denied() && retry_after > MINUTE && retry_after <= MINUTE * 2, "{retry_after:?}");
}

#[tokio::test]
async fn a_waiter_dropped_without_a_reservation_takes_nothing_and_others_move_up() {
    let database = Database::migrated().await;
    let limits = limits().define("one", Limit::sliding_window(1, SECOND * 2)).expect("a limit");
    let limiter = limiter(&database.app, limits, |_| {});
    assert!(limiter.limit(("one", "k")).await.expect("a decision").is_allowed());
    let wait = || {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.until_ready(("one", "k"), MINUTE).await })
    };
    let (first, second, third) = (wait(), wait(), wait());
    while limiter.batches() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.abort();
    second.abort();
    assert!(third.await.expect("a task").expect("a decision").is_allowed());
    let (first, second) = (first.await, second.await);
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
}

#[tokio::test]
async fn invalid_waits_are_errors_before_anything_is_sent() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    let invalid = async |call: Call, max_wait: Duration| match limiter.until_ready(call, max_wait).await {
        Err(Error::Invalid(error)) => error,
        other => panic!("{other:?}"),
    };
    let error = invalid(("paced", "k", 4).into(), SECOND / 10).await;
    assert!(matches!(&error, InvalidCall::WaitTooShort { count: 4.0, max: 3.0, .. }), "{error:?}");
    assert_eq!(error.code(), "wait_too_short");
    assert!(error.to_string().contains("within 100ms") && error.to_string().contains("raise max_wait"), "{error}");
    let error = invalid(("none", "k").into(), Duration::ZERO).await;
    assert!(matches!(&error, InvalidCall::WaitTooShort { max: 0.0, .. }), "{error:?}");
    // Only two windows are certain to open within two seconds.
    let error = invalid(("windows", "k", 10).into(), SECOND * 2).await;
    assert!(matches!(&error, InvalidCall::WaitTooShort { max: 9.0, .. }), "{error:?}");
    let error = invalid(("owing_one", "k", 3).into(), MINUTE).await;
    assert!(matches!(&error, InvalidCall::CountExceedsCapacity { max: 2.0, .. }), "{error:?}");
    let error = invalid(("sliding", "k", 11).into(), MINUTE).await;
    assert!(matches!(&error, InvalidCall::CountExceedsCapacity { max: 10.0, .. }), "{error:?}");
    let error = invalid(Item::new("sliding", "k").reserve(), MINUTE).await;
    assert!(matches!(&error, InvalidCall::ReserveUnsupported { .. }), "{error:?}");
    let error = invalid(Call::from(("paced", "k")).idempotency_key("once"), MINUTE).await;
    assert!(matches!(&error, InvalidCall::IdempotencyKeyUnsupported), "{error:?}");
    assert!(matches!(invalid(("nope", "k").into(), MINUTE).await, InvalidCall::UnknownLimit { .. }));
    assert_eq!(limiter.batches(), 0);
    // A reservation can serve more than the capacity.
    assert!(limiter.until_ready(("paced", "k", 4), MINUTE).await.expect("a decision").is_allowed());
    limiter.close().await;
    assert!(matches!(limiter.until_ready(("paced", "k"), MINUTE).await, Err(Error::Closed)));
}

#[tokio::test]
async fn invalid_wait_settings_are_clamped() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for jitter in [f64::NAN, -1.0, f64::INFINITY, 0.0, 1.0] {
        let mut wait = WaitConfig::up_to(Duration::MAX);
        wait.jitter = jitter;
        for name in ["windows", "sliding", "paced"] {
            for _ in 0..4 {
                assert!(limiter.until_ready((name, "k"), wait).await.expect("a decision").is_allowed(), "{jitter}");
            }
        }
    }
    let default = WaitConfig::default();
    assert_eq!((default.max_wait, default.jitter), (SECOND * 30, 0.1));
    assert_eq!(WaitConfig::from(SECOND), WaitConfig::up_to(SECOND));
}
