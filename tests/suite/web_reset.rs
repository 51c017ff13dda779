//! `X-RateLimit-Reset` and the `t` of `RateLimit`: the time until more tokens remain or the window ends, on the database's clock.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestLimits};
use pg_limiter::{Calendar, KeySecret, Limit, Limiter, LimiterConfig, Limits};

use crate::support::web::{Seen, Served};
use crate::support::{Database, sqlx};

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn user() -> HeaderKey {
    HeaderKey::new("x-user").expect("a name")
}

fn limits() -> Limits {
    Limits::new()
        .define("fixed", Limit::fixed_window(1000, MINUTE).start(Duration::ZERO))
        .and_then(|limits| limits.define("shifted", Limit::fixed_window(1000, MINUTE).start(20 * SECOND)))
        .and_then(|limits| limits.define("spread", Limit::fixed_window(1000, MINUTE)))
        .and_then(|limits| limits.define("sharded", Limit::fixed_window(1000, MINUTE).shards(2)))
        .and_then(|limits| limits.define("sliding", Limit::sliding_window(1000, MINUTE)))
        .and_then(|limits| limits.define("fine", Limit::sliding_window(1000, MINUTE).resolution(6)))
        .and_then(|limits| limits.define("hourly", Limit::calendar(1000, Calendar::hours(1))))
        .and_then(|limits| limits.define("bucket", Limit::token_bucket(60, 60 * MINUTE)))
        .expect("limits")
}

/// A server with a route for each limit, named after the limit.
async fn served(limiter: &Limiter) -> Served {
    let mut app = Router::new();
    for (name, _) in limiter.limits().iter() {
        let layer = RateLimitLayer::new(limiter.clone()).limit(name, user()).expect("a limit").x_ratelimit_headers();
        app = app.route(&format!("/{name}"), get(|| async { "hello" }).layer(layer));
    }
    Served::start(app).await
}

async fn clock(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT rate_limit._clock()").fetch_one(&database.pool).await.expect("the clock")
}

/// The phase of the windows of this limit, from the database.
async fn phase(database: &Database, name: &str, stored_key: &str) -> i64 {
    match name {
        "shifted" => 20_000_000,
        "spread" | "sharded" => sqlx::query_scalar("SELECT rate_limit._phase($1, $2)")
            .bind(name)
            .bind(stored_key)
            .fetch_one(&database.pool)
            .await
            .expect("a phase"),
        _ => 0,
    }
}

const fn length(name: &str) -> i64 {
    match name.as_bytes() {
        b"fine" => 10_000_000,
        b"hourly" => 3_600_000_000,
        _ => 60_000_000,
    }
}

fn reset(seen: &Seen) -> i64 {
    assert_eq!(seen.status, 200, "{seen:?}");
    let reset = seen.number("x-ratelimit-reset").expect("a time");
    assert_eq!(seen.list("ratelimit")[0].1.get("t"), Some(&reset), "{seen:?}");
    reset
}

/// Asserts that the reset of a request is the end of the window in which the request was decided.
async fn check(database: &Database, served: &Served, name: &str, stored_key: &str) -> i64 {
    let phase = phase(database, name, stored_key).await;
    let left = |clock: i64| length(name) - (clock - phase).rem_euclid(length(name));
    for _ in 0..5 {
        let before = left(clock(database).await);
        let seen = served.get(&format!("/{name}"), &[("x-user", "u1")]).await;
        let after = left(clock(database).await);
        // The window ended while the request ran, or so shortly before that the layer, which is behind by up to the time of a
        // round trip, may not know it yet.
        if after > before || after > length(name) - 1_000_000 {
            tokio::time::sleep(SECOND).await;
            continue;
        }
        let reset = reset(&seen);
        // The layer knows the clock up to the time of a round trip, and never returns a time that is too short.
        let expected = after.div_euclid(1_000_000)..=before.div_euclid(1_000_000) + 5;
        assert!(expected.contains(&reset) && reset * 1_000_000 >= after - 20_000, "{name}: {reset}, not {expected:?}");
        return reset;
    }
    panic!("the window of {name} ends with each request");
}

const WINDOWS: [&str; 7] = ["fixed", "shifted", "spread", "sharded", "sliding", "fine", "hourly"];

#[tokio::test]
async fn reset_of_every_window_is_its_end_on_the_databases_clock() {
    let database = Database::migrated().await;
    let served = served(&database.limiter(limits())).await;
    for name in WINDOWS {
        check(&database, &served, name, "u1").await;
    }
}

/// The windows of a fixed window without a start depend on the key as it is stored.
#[tokio::test]
async fn reset_of_a_hashed_key_is_the_end_of_its_window() {
    let database = Database::migrated().await;
    let secret = KeySecret::new("0123456789abcdef").expect("a secret");
    let mut config = LimiterConfig::default();
    config.key_secret = Some(secret.clone());
    let limiter = Limiter::with_config(database.pool.clone(), limits(), config);
    let served = served(&limiter).await;
    for name in ["spread", "sharded"] {
        check(&database, &served, name, &secret.stored_key(name, "u1")).await;
    }
}

#[cfg(feature = "testing")]
#[tokio::test]
async fn reset_counts_down_within_every_window() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let limiter = database.limiter(limits());
    for name in WINDOWS {
        let served = served(&limiter).await;
        for _ in 0..3 {
            check(&database, &served, name, "u1").await;
            clock.advance(17 * SECOND).await.expect("advanced");
        }
    }
}

/// Here another process advances the clock, as an administrator may set a server's.
#[cfg(feature = "testing")]
#[tokio::test]
async fn the_databases_clock_is_read_again_after_a_minute() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let served = served(&database.limiter(limits())).await;
    let ada = [("x-user", "u1")];
    check(&database, &served, "hourly", "u1").await;
    let before = check(&database, &served, "fixed", "u1").await;
    database
        .execute("SELECT setval('rate_limit._test_clock', last_value + 23000000) FROM rate_limit._test_clock")
        .await;
    let stale = reset(&served.get("/fixed", &ada).await);
    let passed = (before - stale).rem_euclid(60);
    assert!(passed < 20, "{before}, then {stale}: the clock is not asked for each request");
    clock.advance(61 * SECOND).await.expect("advanced");
    for _ in 0..500 {
        let left = length("fixed") - self::clock(&database).await.rem_euclid(length("fixed"));
        let reset = reset(&served.get("/fixed", &ada).await);
        if (reset * 1_000_000 - left).abs() < 2_000_000 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the clock is never read again");
}

/// The next token of a bucket for one token a minute, while others remain.
#[cfg(feature = "testing")]
#[tokio::test]
async fn reset_of_a_bucket_counts_down_to_its_next_token() {
    let database = Database::migrated().await;
    let clock = database.test_clock().await;
    let limiter = database.limiter(limits());
    let layer = RateLimitLayer::new(limiter.clone()).limit("bucket", user()).expect("a limit").x_ratelimit_headers();
    let layer = layer.cost(|request| if request.uri.path() == "/free" { 0 } else { 1 });
    let app =
        Router::new().route("/", get(|| async { "hello" })).route("/free", get(|| async { "hello" })).layer(layer);
    let served = Served::start(app).await;
    let ada = [("x-user", "ada")];
    let full = served.get("/free", &ada).await;
    assert_eq!((full.number("x-ratelimit-reset"), full.list("ratelimit")[0].1.get("t")), (Some(0), None), "it is full");
    let first = served.get("/", &ada).await;
    assert!((50..=60).contains(&reset(&first)) && first.list("ratelimit")[0].1["r"] == 59, "{first:?}");
    for expected in [35, 10] {
        clock.advance(25 * SECOND).await.expect("advanced");
        let seen = served.get("/free", &ada).await;
        let reset = reset(&seen);
        assert!((1..=expected).contains(&reset) && seen.list("ratelimit")[0].1["r"] == 59, "{expected}: {seen:?}");
        assert!(reset > expected - 10, "{expected}: {seen:?}");
    }
    clock.advance(10 * SECOND).await.expect("advanced");
    assert_eq!(served.get("/free", &ada).await.list("ratelimit")[0].1["r"], 60, "a token has arrived");
}

/// The fields describe the moment of the response. A handler may take long before it responds.
#[tokio::test]
async fn reset_counts_from_the_response_and_not_from_the_decision() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let slow = || async {
        tokio::time::sleep(3 * SECOND).await;
        "hello"
    };
    let charging = |limits: RequestLimits| async move {
        limits.enforce().await?;
        tokio::time::sleep(3 * SECOND).await;
        Ok::<_, pg_limiter::Error>("hello")
    };
    let layer = RateLimitLayer::new(limiter).limit("hourly", user()).expect("a limit").x_ratelimit_headers();
    let app = Router::new()
        .route("/", get(slow).layer(layer.clone()))
        .route("/charging", get(charging).layer(layer.in_handler()));
    let served = Served::start(app).await;
    for path in ["/", "/charging"] {
        let before = length("hourly") - clock(&database).await.rem_euclid(length("hourly"));
        let seen = served.get(path, &[("x-user", "u1")]).await;
        let after = length("hourly") - clock(&database).await.rem_euclid(length("hourly"));
        if after < before {
            assert!(reset(&seen) * 1_000_000 <= before - 1_000_000, "{path}: {}, at first {before}", reset(&seen));
        }
    }
}
