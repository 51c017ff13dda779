//! Allowances: tokens that a process takes many at once and spends from memory.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pg_limiter::sqlx;
use pg_limiter::{Allowance, Calendar, Error, InvalidCall, Item, Kind, Limit, Limiter, Limits};

use crate::support::proxy::{Chaos, Fault, Point, Proxy, Way};
use crate::support::{Database, limiter_at, process};

const CAPACITY: f64 = 1_000.0;
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
const HOUR: Duration = Duration::from_secs(3_600);
const KINDS: [&str; 5] = ["bucket", "sharded", "fixed", "calendar", "sliding"];
const URL: &str = "PG_LIMITER_TEST_ALLOWANCE";

/// Nothing flows in while a test runs.
fn limits() -> Limits {
    let bucket = || Limit::token_bucket(1e-6, CENTURY).capacity(CAPACITY);
    Limits::new()
        .define("bucket", bucket())
        .and_then(|limits| limits.define("sharded", bucket().shards(4)))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(CAPACITY, CENTURY).start(Duration::ZERO)))
        .and_then(|limits| limits.define("calendar", Limit::calendar(CAPACITY, Calendar::years(100))))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(CAPACITY, CENTURY)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(5).lease(HOUR)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .expect("limits")
}

async fn left(limiter: &Limiter, name: &str) -> f64 {
    limiter.peek((name, "k")).await.expect("a balance").remaining()
}

/// Waits until the bucket holds so many tokens. Panics if it never does.
async fn until_left(limiter: &Limiter, name: &str, expected: f64) {
    let began = Instant::now();
    loop {
        let left = left(limiter, name).await;
        if (left - expected).abs() < 1e-3 {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{name}: {left} tokens are left, not {expected}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until_available(allowance: &Allowance, expected: f64) {
    let began = Instant::now();
    while allowance.available() != expected {
        assert!(began.elapsed() < Duration::from_secs(60), "{allowance:?}, not {expected}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn is_taken(allowance: &Allowance, count: f64) -> bool {
    allowance.take(count).await.expect("a decision").is_allowed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_handles_never_spend_more_than_the_limit_grants() {
    let database = Database::migrated().await;
    join_all(KINDS.map(async |name| {
        let processes = (0..3).map(async |nth| {
            let limiter = database.limiter(limits());
            let mut spent = 0.0;
            // Each allowance ends while it holds tokens: it is dropped, or closed.
            for _ in 0..5 {
                let allowance = limiter.allowance((name, "k"), 40, HOUR).expect("an allowance");
                let tasks = (1..=4).map(|task| {
                    let allowance = allowance.clone();
                    tokio::spawn(async move {
                        let (count, mut spent) = (f64::from(task) / 4.0, 0.0);
                        for _ in 0..30 {
                            if allowance.try_take(count) || is_taken(&allowance, count).await {
                                spent += count;
                            }
                        }
                        spent
                    })
                });
                spent += join_all(tasks).await.into_iter().map(|task| task.expect("a task")).sum::<f64>();
                if nth == 0 {
                    allowance.close().await.expect("tokens given back");
                }
            }
            spent
        });
        let spent: f64 = join_all(processes).await.into_iter().sum();
        assert!((CAPACITY / 2.0..=CAPACITY).contains(&spent), "{name}: {spent} tokens were spent");
        // Unspent tokens are left for others, except for sliding windows.
        let limiter = database.limiter(limits());
        match name {
            "sliding" => assert!(left(&limiter, name).await <= CAPACITY - spent + 1e-3),
            _ => until_left(&limiter, name, CAPACITY - spent).await,
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_never_grant_tokens_twice() {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    let menu = vec![
        (Point::Commit, Way::Cut),
        (Point::Commit, Way::Drop),
        (Point::Statement, Way::Drop),
        (Point::Statement, Way::Cut),
    ];
    for (seed, name) in ["bucket", "fixed"].into_iter().enumerate() {
        let limiters = [(); 3].map(|()| limiter_at(&proxy.url, limits(), |_| {}));
        proxy.unleash(Chaos { seed: 7 + seed as u64, per_thousand: 100, menu: menu.clone() });
        let handles = limiters.iter().map(async |limiter| {
            let (mut spent, mut unknown) = (0_u32, 0);
            for _ in 0..20 {
                let allowance = limiter.allowance((name, "k"), 20, HOUR).expect("an allowance");
                for _ in 0..30 {
                    match allowance.take(1).await {
                        Ok(decision) => spent += u32::from(decision.is_allowed()),
                        Err(Error::OutcomeUnknown { .. }) => unknown += 1,
                        Err(error) => assert!(!matches!(error, Error::Invalid(_)), "{error}"),
                    }
                }
                let _ = allowance.close().await;
            }
            (spent, unknown)
        });
        let results = join_all(handles).await;
        proxy.calm();
        proxy.until_idle().await;
        let spent: u32 = results.iter().map(|(spent, _)| spent).sum();
        assert!(results.iter().any(|(_, unknown)| *unknown > 0), "{name}: no outcome was unknown: {results:?}");
        let left = left(&database.limiter(limits()), name).await;
        assert!(f64::from(spent) + left <= CAPACITY + 1e-3, "{name}: {spent} spent and {left} left");
    }
}

#[tokio::test]
async fn an_unknown_outcome_counts_as_spent_and_is_not_repeated() {
    let database = Database::migrated().await;
    let proxy = Proxy::before(&database.url).await;
    let (limiter, direct) = (limiter_at(&proxy.url, limits(), |_| {}), database.limiter(limits()));
    let allowance = limiter.allowance(("bucket", "k"), 100, HOUR).expect("an allowance");
    proxy.put(Fault::once(Point::Commit, Way::Cut));
    let [first, second] = [allowance.take(1), allowance.take(1)];
    let (first, second) = tokio::join!(first, second);
    for result in [first, second] {
        assert!(matches!(result, Err(Error::OutcomeUnknown { .. })), "{result:?}");
    }
    assert_eq!((allowance.available(), allowance.refills()), (0.0, 1));
    until_left(&direct, "bucket", 900.0).await;
    assert!(is_taken(&allowance, 1.0).await);
    until_left(&direct, "bucket", 800.0).await;
    proxy.put(Fault::once(Point::Commit, Way::Cut));
    let result = allowance.close().await;
    assert!(matches!(result, Err(Error::OutcomeUnknown { .. })), "{result:?}");
    until_left(&direct, "bucket", 899.0).await;
    allowance.close().await.expect("nothing to give back");
    drop(allowance);
    tokio::time::sleep(Duration::from_millis(100)).await;
    until_left(&direct, "bucket", 899.0).await;
}

/// The entry point of a process that is killed while it holds an allowance.
#[test]
fn holder_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let limiter = Limiter::new(Database::pool(&url, 2).await, limits());
        let allowance = limiter.allowance(("bucket", "k"), 100, HOUR).expect("an allowance");
        assert!(is_taken(&allowance, 1.0).await);
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn a_crash_strands_at_most_the_size() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let mut holders: Vec<_> = (0..3).map(|_| process("allowance::holder_process", URL, &database.url)).collect();
    until_left(&limiter, "bucket", 700.0).await;
    for holder in &mut holders {
        holder.kill().await.expect("kill"); // SIGKILL
    }
    assert!(limiter.limit(("bucket", "k", 700)).await.expect("a decision").is_allowed());
    assert!(limiter.limit(("bucket", "k")).await.expect("a decision").is_denied());
}

#[tokio::test]
async fn unused_tokens_are_given_back_on_close_on_drop_and_after_the_ttl() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    for name in KINDS {
        let mut expected = CAPACITY;
        let ttl = Duration::from_millis(300);
        for (nth, ttl) in [HOUR, HOUR, ttl].into_iter().enumerate() {
            let allowance = limiter.allowance(Item::new(name, "k"), 100, ttl).expect("an allowance");
            assert!(is_taken(&allowance, 7.0).await, "{name}");
            expected -= if name == "sliding" { 100.0 } else { 7.0 };
            match nth {
                0 => allowance.close().await.expect("tokens given back"),
                1 => drop(allowance),
                _ => until_available(&allowance, 0.0).await,
            }
            until_left(&limiter, name, expected).await;
        }
        assert!(limiter.limit((name, "k", expected - 0.01)).await.expect("a decision").is_allowed(), "{name}");
    }
}

/// Tokens end with their window. They are neither spent nor given back in the next one, even if the credit was sent before.
#[tokio::test]
async fn tokens_of_an_ended_window_are_dropped() {
    let database = Database::migrated().await;
    let limit = Limit::fixed_window(100, Duration::from_secs(4)).capacity(150).start(Duration::ZERO);
    let limiter = database.limiter(Limits::new().define("short", limit).expect("a limit"));
    for (key, is_locked) in [("open", false), ("locked", true)] {
        let peek = async || limiter.peek(("short", key)).await.expect("a balance");
        // A new key for each attempt, until everything happens in one window.
        for attempt in 0.. {
            assert!(attempt < 20, "the windows are too short for this machine");
            let key = format!("{key}{attempt}");
            let ends_in = async || {
                let balances = limiter.peek(("short", &key)).await.expect("a balance");
                balances.limits()[0].window_ends_in.expect("a window")
            };
            let _ = peek().await;
            let before = ends_in().await;
            assert!(limiter.limit(("short", &key, 100)).await.expect("a decision").is_allowed());
            let allowance = limiter.allowance(("short", &key), 50, HOUR).expect("an allowance");
            assert!(is_taken(&allowance, 1.0).await);
            let lock = "SELECT FROM rate_limit.rate_limits WHERE key = $1 FOR UPDATE";
            let mut holder = database.pool.begin().await.expect("begin");
            let mut closing = None;
            if is_locked {
                sqlx::query(lock).bind(&key).execute(&mut *holder).await.expect("a lock");
                let allowance = allowance.clone();
                closing = Some(tokio::spawn(async move { allowance.close().await }));
            }
            let rest = database.limiter(limiter.limits()).peek(("short", "other")).await.expect("a balance");
            let rest = rest.limits()[0].window_ends_in.expect("a window");
            if rest > before || rest < Duration::from_millis(500) {
                continue;
            }
            tokio::time::sleep(rest + Duration::from_millis(20)).await;
            assert!(allowance.available() == 0.0 && !allowance.try_take(0.001), "{key}");
            holder.rollback().await.expect("rollback");
            match closing {
                Some(closing) => closing.await.expect("a task").expect("nothing to give back"),
                None => allowance.close().await.expect("nothing to give back"),
            }
            // `try_take` may have begun a refill, which `close` gives back.
            let left = limiter.peek(("short", &key)).await.expect("a balance").remaining();
            if ends_in().await < Duration::from_secs(3) {
                continue; // The next window may have ended, too.
            }
            assert!(left <= 100.0, "{key}: {left} tokens are left in a window of 100");
            break;
        }
    }
}

#[tokio::test]
async fn a_denial_is_remembered_until_it_can_end() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    assert!(limiter.limit(("bucket", "k", 995)).await.expect("a decision").is_allowed());
    let allowance = limiter.allowance(("bucket", "k"), 8, Duration::from_millis(500)).expect("an allowance");
    // Takes what is left.
    assert!(is_taken(&allowance, 1.0).await);
    assert!((4.0 - allowance.available()).abs() < 1e-3, "{allowance:?}");
    assert!(limiter.limit(("bucket", "k")).await.expect("a decision").is_denied());
    assert!(is_taken(&allowance, 2.0).await && allowance.try_take(1.9));

    let expected = limiter.check(("bucket", "k", 6)).await.expect("a decision").retry_after().expect("a wait");
    let asked = Instant::now();
    let denied = allowance.take(6).await.expect("a decision");
    let retry_after = denied.retry_after().expect("a denial");
    assert_eq!(denied.denied_by(), ["bucket"]);
    assert!(retry_after <= expected && retry_after.as_secs_f64() > 0.9 * expected.as_secs_f64(), "{retry_after:?}");
    let batches = limiter.batches();
    for _ in 0..100 {
        let again = allowance.take(7).await.expect("a decision");
        if asked.elapsed() < Duration::from_millis(400) {
            assert!(again.retry_after().expect("a denial") <= retry_after);
            assert_eq!(limiter.batches(), batches, "the database was asked again");
        }
    }
    let _ = limiter.credit(("bucket", "k", 500)).await.expect("a balance");
    let began = Instant::now();
    while !is_taken(&allowance, 6.0).await {
        assert!(began.elapsed() < Duration::from_secs(60), "the denial is never forgotten");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn it_refills_before_it_runs_dry() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let allowance = limiter.allowance(("bucket", "k"), 80, HOUR).expect("an allowance");
    for _ in 0..900 {
        assert!(is_taken(&allowance, 1.0).await);
        let began = Instant::now();
        while allowance.available() < 20.0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{allowance:?} is not refilled");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(allowance.waits(), 1, "only the first caller waits");
    assert!((900 / 80..=900 / 60 + 2).contains(&allowance.refills()), "{} refills", allowance.refills());
}

#[tokio::test]
async fn callers_share_a_refill_and_a_dropped_one_serves_others() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let allowance = limiter.allowance(("bucket", "k"), 500, HOUR).expect("an allowance");
    let dropped = tokio::time::timeout(Duration::ZERO, allowance.take(50)).await;
    let spent = if dropped.is_ok() { 50.0 } else { 0.0 };
    until_available(&allowance, 500.0 - spent).await;
    assert!(is_taken(&allowance, 500.0 - spent).await);
    assert_eq!(allowance.refills(), 1);
    until_left(&limiter, "bucket", 0.0).await; // A refill has begun in the background.
    until_available(&allowance, 500.0).await;
    assert_eq!(allowance.refills(), 2);
    limiter.reset(("bucket", "k")).await.expect("a reset");

    let allowance = limiter.allowance(("bucket", "k"), 500, HOUR).expect("an allowance");
    let taken = join_all((0..256).map(|_| is_taken(&allowance, 1.0))).await;
    assert!(taken.into_iter().all(|taken| taken));
    assert_eq!((allowance.refills(), allowance.available()), (1, 244.0));
}

#[tokio::test]
async fn what_it_cannot_hold_is_rejected_or_decided_by_the_database() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let refused = |name: &str, size: f64, ttl| match limiter.allowance((name, "k"), size, ttl) {
        Err(Error::Invalid(error)) => error,
        other => panic!("{name}, {size}: {other:?}"),
    };
    assert!(matches!(refused("slots", 2.0, HOUR), InvalidCall::AllowanceUnsupported { kind: Kind::Concurrency, .. }));
    assert!(matches!(refused("gate", 2.0, HOUR), InvalidCall::AllowanceUnsupported { kind: Kind::Gate, .. }));
    assert!(matches!(refused("nope", 2.0, HOUR), InvalidCall::UnknownLimit { .. }));
    assert!(matches!(refused("bucket", 1_001.0, HOUR), InvalidCall::CountExceedsCapacity { .. }));
    assert!(matches!(refused("bucket", 0.0, HOUR), InvalidCall::Allowance { .. }));
    assert!(matches!(refused("bucket", 2.0, Duration::ZERO), InvalidCall::Allowance { .. }));
    assert!(matches!(refused("bucket", -1.0, HOUR), InvalidCall::Count { .. }));
    assert!(matches!(refused("bucket", f64::NAN, HOUR), InvalidCall::Count { .. }));

    let allowance = limiter.allowance(("bucket", "k"), 10, Duration::MAX).expect("an allowance");
    for wrong in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(!allowance.try_take(wrong));
        let error = allowance.take(wrong).await.expect_err("refused");
        assert!(matches!(error, Error::Invalid(InvalidCall::Count { .. })), "{error}");
    }
    let error = allowance.take(1_001).await.expect_err("refused");
    assert!(matches!(error, Error::Invalid(InvalidCall::CountExceedsCapacity { .. })), "{error}");
    assert!(allowance.take(500).await.expect("a decision").is_allowed());
    assert!(is_taken(&allowance, 10.0).await, "the whole size");
    let clone = allowance.clone();
    allowance.close().await.expect("tokens given back");
    until_left(&limiter, "bucket", 490.0).await;
    assert!(!clone.try_take(1));
    assert!(matches!(clone.take(1).await, Err(Error::Closed)) && matches!(clone.take(100).await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_replaced_limit_applies_from_the_next_refill_on() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let allowance = limiter.allowance(("bucket", "k"), 100, HOUR).expect("an allowance");
    assert!(is_taken(&allowance, 60.0).await);
    let smaller = Limit::token_bucket(1e-6, CENTURY).capacity(30);
    limiter.replace_limits(limits().define("bucket", smaller).expect("a limit"));
    assert!(allowance.try_take(30));
    until_available(&allowance, 30.0).await; // 10 of the former limit, and 20 of this one
    assert!(is_taken(&allowance, 25.0).await);
    let error = allowance.take(40).await.expect_err("too many");
    assert!(matches!(error, Error::Invalid(InvalidCall::CountExceedsCapacity { .. })), "{error}");
    limiter.replace_limits(limits().define("bucket", Limit::gate()).expect("a limit"));
    let error = allowance.take(20).await.expect_err("a gate");
    assert!(matches!(error, Error::Invalid(InvalidCall::AllowanceUnsupported { .. })), "{error}");
    limiter.replace_limits(limits());
    let before = left(&limiter, "bucket").await;
    allowance.close().await.expect("closed");
    let after = left(&limiter, "bucket").await;
    assert_eq!(after, before, "tokens of a replaced limit were given back");
}
