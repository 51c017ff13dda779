//! A peek says when each bucket is full again, and when the window of a fixed window ends.

use std::time::Duration;

use futures_util::future::join_all;
use pg_limiter::sqlx;
use pg_limiter::{Item, Limit, Limiter, Limits};

use crate::support::Database;
use crate::support::gate::{CENTURY, limiter};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("bucket", Limit::token_bucket(10, HOUR).capacity(20))
        .and_then(|limits| limits.define("paced", Limit::token_bucket(60, HOUR).capacity(0)))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(100, HOUR).shards(4)))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(10, CENTURY).capacity(25)))
        .and_then(|limits| limits.define("fixed_sharded", Limit::fixed_window(40, CENTURY).shards(4)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(10, HOUR).resolution(6)))
        .and_then(|limits| limits.define("gate", Limit::gate()))
        .expect("limits")
}

/// Returns the balance, and the two times.
async fn peek(limiter: &Limiter, name: &str) -> (f64, Duration, Option<Duration>) {
    let balances = limiter.peek((name, "k")).await.expect("a peek");
    let state = &balances.limits()[0];
    assert_eq!(balances.full_in(), state.full_in);
    (state.remaining, state.full_in.expect("a time"), state.window_ends_in)
}

/// Whether a time that was right a moment ago is this one.
fn is_just_before(time: Duration, expected: Duration) -> bool {
    time <= expected && expected - time < 60 * SECOND
}

#[tokio::test]
async fn a_full_bucket_is_full_now() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    for name in ["bucket", "paced", "sharded", "sliding", "gate"] {
        let (_, full_in, window) = peek(&limiter, name).await;
        assert_eq!((full_in, window), (Duration::ZERO, None), "{name}");
    }
    for name in ["fixed", "fixed_sharded"] {
        let (_, full_in, window) = peek(&limiter, name).await;
        assert!(
            full_in.is_zero() && window.is_some_and(|end| end > Duration::ZERO && end <= CENTURY),
            "{name}: {window:?}"
        );
    }
    assert_eq!(database.rows().await, 0);
}

#[tokio::test]
async fn a_peek_says_when_each_kind_is_full_again() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    limiter.charge(("bucket", "k", 5)).await.expect("a charge");
    let (_, full_in, _) = peek(&limiter, "bucket").await;
    assert!(is_just_before(full_in, HOUR / 2), "{full_in:?}");
    limiter.charge(("bucket", "k", 25)).await.expect("a charge"); // Ten are owed.
    let (remaining, full_in, _) = peek(&limiter, "bucket").await;
    assert!(remaining < -9.0 && is_just_before(full_in, 3 * HOUR), "{full_in:?}");
    assert!(limiter.limit(Item::new("paced", "k").count(3).reserve()).await.expect("a decision").is_reserved());
    let (_, full_in, _) = peek(&limiter, "paced").await;
    assert!(is_just_before(full_in, 180 * SECOND), "{full_in:?}");
    limiter.charge(("sharded", "k", 50)).await.expect("a charge");
    let (remaining, full_in, _) = peek(&limiter, "sharded").await;
    assert!((50.0..52.0).contains(&remaining) && is_just_before(full_in, HOUR / 2), "{remaining}, {full_in:?}");
    limiter.block(("gate", "k"), HOUR).await.expect("a block");
    let (remaining, full_in, _) = peek(&limiter, "gate").await;
    assert!(remaining == 0.0 && is_just_before(full_in, HOUR), "{full_in:?}");

    // Windows: the server's clock gives the expected end.
    for (name, count, windows) in [("fixed", 10, 1), ("fixed", 6, 2), ("fixed", 20, 4), ("fixed_sharded", 7, 1)] {
        limiter.charge((name, "k", count)).await.expect("a charge");
        let (_, full_in, window) = peek(&limiter, name).await;
        let end = window.expect("a window");
        assert!(end > Duration::ZERO && end <= CENTURY);
        assert_eq!(full_in, end + (windows - 1) * CENTURY, "{name}");
        // A denial waits for the same window.
        if name == "fixed" && windows == 4 {
            let wait = limiter.check((name, "k")).await.expect("a decision").retry_after().expect("denied");
            // It owes 11, so the second grant is the first that covers the call.
            assert!(is_just_before(wait, end + CENTURY), "{wait:?}, {end:?}");
        }
    }
    // All of it has left when one sub-interval of ten minutes has passed after the period, counted from the start of its own.
    let expected = async || -> Duration {
        let sql = "SELECT 4200000000 - (extract(epoch FROM clock_timestamp()) * 1e6)::bigint % 600000000";
        let micros: i64 = sqlx::query_scalar(sql).fetch_one(&database.pool).await.expect("a time");
        Duration::from_micros(micros.unsigned_abs())
    };
    let before = expected().await;
    limiter.charge(("sliding", "k", 3)).await.expect("a charge");
    let (_, full_in, window) = peek(&limiter, "sliding").await;
    let after = expected().await; // Another sub-interval may have begun.
    assert!(window.is_none() && [before, after].iter().any(|time| is_just_before(full_in, *time)), "{full_in:?}");
}

/// Together with other calls, in one batch and in the caller's transaction, in the order of the items.
#[tokio::test(flavor = "multi_thread")]
async fn a_peek_of_several_limits_has_a_time_for_each() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.app, limits(), |_| {});
    let names = ["sliding", "bucket", "gate", "fixed", "sharded", "bucket"];
    let items = || names.map(|name| Item::new(name, "k").count(7));
    limiter.charge([("bucket", "k", 5), ("sharded", "k", 50)].map(Item::from)).await.expect("a charge");
    let check = |balances: &pg_limiter::Balances| {
        let states = balances.limits();
        assert_eq!(states.iter().map(|state| &*state.limit).collect::<Vec<_>>(), names);
        let full = |place: usize| states[place].full_in.expect("a time");
        assert!(full(0).is_zero() && full(2).is_zero() && full(3).is_zero());
        assert!([1, 4, 5].iter().all(|place| is_just_before(full(*place), HOUR / 2)), "{states:?}");
        assert!(states[3].window_ends_in.is_some() && states[1].window_ends_in.is_none());
        assert_eq!(balances.full_in(), states.iter().filter_map(|state| state.full_in).max());
    };
    let calls = (0..30).map(|nth| {
        let limiter = &limiter;
        async move {
            match nth % 3 {
                0 => Some(limiter.peek(items()).await.expect("a peek")),
                1 => limiter.check(("bucket", "k")).await.map(|_| None).expect("a decision"),
                _ => limiter.limit(("bucket", "other")).await.map(|_| None).expect("a decision"),
            }
        }
    });
    join_all(calls).await.iter().flatten().for_each(check);
    let mut tx = database.app.begin().await.expect("begin");
    check(&limiter.within(&mut tx).peek(items()).await.expect("a peek"));
    limiter.within(&mut tx).charge(("bucket", "k", 10)).await.expect("a charge");
    let seen = limiter.within(&mut tx).peek(("bucket", "k")).await.expect("a peek");
    assert!(is_just_before(seen.full_in().expect("a time"), 3 * HOUR / 2), "{seen:?}");
    tx.rollback().await.expect("rollback");
    // Other operations do not say it.
    let decision = limiter.check(("bucket", "k")).await.expect("a decision");
    assert_eq!((decision.limits()[0].full_in, decision.limits()[0].window_ends_in), (None, None));
}

/// The promise: at that time, and not before, the bucket is full.
#[tokio::test]
async fn full_in_is_exact() {
    let database = Database::migrated().await;
    let mut conn = database.pool.acquire().await.expect("a connection");
    let moment =
        std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600) + Duration::from_micros(1_234_567);
    let kinds = Limits::new()
        .define("bucket", Limit::token_bucket(7, 11 * SECOND).capacity(13))
        .and_then(|limits| limits.define("sharded", Limit::token_bucket(70, 11 * SECOND).capacity(80).shards(4)))
        .and_then(|limits| limits.define("fixed", Limit::fixed_window(3, 11 * SECOND).capacity(8)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(7, 11 * SECOND).resolution(3)))
        .expect("limits");
    let limiter = pg_limiter::TransactionLimiter::new(kinds);
    for (name, count) in [("bucket", 4.3), ("bucket", 7.9), ("sharded", 61.7), ("fixed", 3.5), ("sliding", 5.0)] {
        let at = |after: Duration, op, count: f64| {
            pg_limiter::CallAt::new(moment + after, op, Item::new(name, "k").count(count))
        };
        let ask = async |conn: &mut sqlx::PgConnection, call| {
            let decided = limiter.decide_at(conn, &[call]).await.expect("an answer");
            decided.into_iter().next().expect("one answer").expect("a valid call").limits()[0].clone()
        };
        ask(&mut conn, at(Duration::ZERO, pg_limiter::Op::Reset, 0.0)).await;
        ask(&mut conn, at(Duration::ZERO, pg_limiter::Op::Charge, count)).await;
        for later in [Duration::ZERO, SECOND, Duration::from_micros(2_000_001)] {
            let state = ask(&mut conn, at(later, pg_limiter::Op::Peek, 0.0)).await;
            let full = later + state.full_in.expect("a time");
            let capacity = state.capacity;
            let then = ask(&mut conn, at(full, pg_limiter::Op::Peek, 0.0)).await;
            assert!(
                then.remaining >= capacity - 1e-9 && then.full_in == Some(Duration::ZERO),
                "{name}: {state:?}, {then:?}"
            );
            let before = ask(&mut conn, at(full - Duration::from_micros(2), pg_limiter::Op::Peek, 0.0)).await;
            assert!(
                before.remaining < capacity && before.full_in > Some(Duration::ZERO),
                "{name}: {state:?}, {before:?}"
            );
        }
    }
}
