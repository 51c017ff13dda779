//! Requests while the database is down, not set up, or overloaded: they are rejected by default, allowed if the layer is
//! configured so, and only the operator sees the cause.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use futures_util::future::join_all;
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::sqlx::{self, PgPool};
use pg_limiter::web::{HeaderKey, OnFailure, RateLimitLayer, RequestLimits, error_response};
use pg_limiter::{Calendar, Error, InvalidCall, Item, Limit, Limiter, LimiterConfig, Limits};

use crate::support::web::{Seen, Served};
use crate::support::{Database, Events, Node, watch};

const HOUR: Duration = Duration::from_secs(3600);

fn limiter(pool: &PgPool, change: impl FnOnce(&mut LimiterConfig)) -> Limiter {
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_secs(2);
    change(&mut config);
    let limits = Limits::new().define("per_user", Limit::token_bucket(100, HOUR)).expect("a limit");
    Limiter::with_config(pool.clone(), limits, config)
}

fn layer(limiter: &Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone()).limit("per_user", HeaderKey::new("x-user").expect("a name")).expect("a limit")
}

async fn serve(layer: RateLimitLayer) -> Served {
    Served::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await
}

const USER: [(&str, &str); 1] = [("x-user", "somebody-secret")];

/// Asserts a 503 without any detail of the cause.
fn is_refused(seen: &Seen) {
    assert_eq!(seen.status, 503, "{seen:?}");
    assert_eq!(seen.number("retry-after"), Some(1));
    let problem = seen.problem();
    assert_eq!(
        (problem["type"].as_str(), problem["title"].as_str()),
        (Some("about:blank"), Some("Service Unavailable"))
    );
    assert!(seen.list("ratelimit").is_empty());
    for word in ["somebody-secret", "per_user", "postgres", "schema", "rate_limits", "127.0.0.1", "closed", "SQLSTATE"]
    {
        assert!(!seen.body.contains(word), "{word} in {}", seen.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_database_a_layer_rejects_or_allows_as_configured() {
    let mut node = Node::start(&[]).await;
    let pool = PgPoolOptions::new().max_connections(4).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let limiter = limiter(&pool, |_| {});
    let shadow = layer(&limiter).shadow();
    let closed = serve(layer(&limiter)).await;
    let open = serve(layer(&limiter).on_failure(OnFailure::Open)).await;
    let in_shadow = serve(shadow.clone()).await;
    for served in [&closed, &open] {
        let seen = served.get("/", &USER).await;
        assert_eq!((seen.status, seen.list("ratelimit").len()), (200, 1));
    }
    assert_eq!(in_shadow.get("/", &USER).await.status, 200);

    node.kill();
    for _ in 0..600 {
        // The server's other processes end when they notice.
        if closed.get("/", &USER).await.status != 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for _ in 0..2 {
        is_refused(&closed.get("/", &USER).await);
        for served in [&open, &in_shadow] {
            let seen = served.get("/", &USER).await;
            assert_eq!((seen.status, seen.body.as_str()), (200, "hello"));
            assert!(seen.is_untouched());
        }
    }
    assert_eq!(shadow.shadow_denials(), 0, "a missing decision is not a denial");
    // `OnFailure::Open` applies to failures of the database, not to invalid requests.
    assert_eq!(open.get("/", &[]).await.status, 400);
    assert_eq!(open.get("/", &[("x-user", &"k".repeat(1025))]).await.status, 400);

    node.restart().await;
    let mut seen = closed.get("/", &USER).await;
    for _ in 0..100 {
        if seen.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        seen = closed.get("/", &USER).await;
    }
    assert_eq!(seen.status, 200, "it recovers automatically");
}

#[tokio::test]
async fn a_database_without_the_schema_is_a_traced_failure() {
    let events = Events::default();
    let database = Database::empty().await;
    let limiter = limiter(&database.pool, |_| {});
    let watched = watch(events.clone());
    is_refused(&serve(layer(&limiter)).await.get("/", &USER).await);
    assert_eq!(serve(layer(&limiter).on_failure(OnFailure::Open)).await.get("/", &USER).await.status, 200);
    drop(watched);
    let told = events.told();
    assert!(told.contains("rate limits are set up wrongly") && told.contains("run migrate"), "{told}");
    assert!(told.contains("no decision on a rate limit: let through") && told.contains("on_failure is Open"), "{told}");
    assert!(!told.contains("somebody-secret"), "{told}");
}

#[tokio::test]
async fn a_closed_limiter_is_a_failure() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, |_| {});
    limiter.close().await;
    is_refused(&serve(layer(&limiter)).await.get("/", &USER).await);
    assert_eq!(serve(layer(&limiter).on_failure(OnFailure::Open)).await.get("/", &USER).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_max_waiting_is_rejected_at_once() {
    let database = Database::migrated().await;
    let limiter = limiter(&database.pool, |config| {
        config.retry.deadline = Duration::from_secs(60);
        (config.lanes, config.max_batch, config.max_waiting) = (1, 1, 1);
    });
    let served = serve(layer(&limiter)).await;
    assert_eq!(served.get("/", &USER).await.status, 200);
    // Another transaction locks the row.
    let mut tx = database.pool.begin().await.expect("begin");
    sqlx::query("SELECT FROM rate_limit.rate_limits FOR UPDATE").execute(&mut *tx).await.expect("a lock");
    let mut asked: Vec<_> = (0..4).map(|_| Box::pin(served.get("/", &USER))).collect();
    let (seen, _, _) = futures_util::future::select_all(&mut asked).await;
    is_refused(&seen);
    tx.rollback().await.expect("rollback");
}

#[test]
fn every_error_has_its_response() {
    let io = || sqlx::Error::Io(std::io::Error::other("10.0.0.1 somebody-secret"));
    let cases = [
        (Error::Unavailable { source: io() }, 503),
        (Error::RetriesExhausted { attempts: 3, elapsed: HOUR, last: io() }, 503),
        (Error::OutcomeUnknown { last: io() }, 503),
        (Error::Overloaded { waiting: 7 }, 503),
        (Error::Closed, 503),
        (Error::SchemaMissing { schema: "somebody-secret".into(), source: io() }, 503),
        (Error::Conflict { source: io() }, 503),
        (Error::Database { source: io() }, 503),
        (Error::Pooler { source: io() }, 503),
        (Error::Aborted, 500),
        (
            InvalidCall::CountExceedsCapacity {
                limit: "a".into(),
                count: 5.0,
                leave: 0.0,
                max: 2.0,
                kind: pg_limiter::Kind::TokenBucket,
                reserve: false,
            }
            .into(),
            400,
        ),
        (InvalidCall::WaitTooShort { limit: "a".into(), count: 5.0, max: 2.0, max_wait: Duration::ZERO }.into(), 400),
        (InvalidCall::Key { limit: "a".into(), bytes: 2000 }.into(), 400),
        (InvalidCall::IdempotencyKey { bytes: 0 }.into(), 400),
        (InvalidCall::IdempotencyKeyReused.into(), 422),
        (InvalidCall::IdempotencyKeyUnsupported.into(), 500),
        (InvalidCall::Count { limit: "somebody-secret".into(), count: -1.0, capacity: 1.0 }.into(), 500),
        (InvalidCall::UnknownLimit { limit: "somebody-secret".into() }.into(), 500),
        (InvalidCall::Name { bytes: 0 }.into(), 500),
        (InvalidCall::Contradiction { limit: "somebody-secret".into() }.into(), 500),
        (InvalidCall::Empty.into(), 500),
    ];
    for (error, status) in cases {
        let response = error_response(&error);
        assert_eq!(response.status(), status, "{error:?}");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert_eq!(response.headers().contains_key("retry-after"), status == 503);
        let problem: serde_json::Value = serde_json::from_str(response.body()).expect("JSON");
        assert_eq!((problem["status"].clone(), problem["type"].as_str()), (status.into(), Some("about:blank")));
        for word in ["somebody-secret", "10.0.0.1"] {
            assert!(!response.body().contains(word), "{error:?}: {}", response.body());
        }
    }
}

/// Requests that need the windows of calendar limits wait for one failure together, and not one after the other.
#[tokio::test]
async fn without_a_database_the_windows_of_calendars_are_asked_for_once() {
    let mut node = Node::start(&[]).await;
    let pool = PgPoolOptions::new().max_connections(4).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let events = Events::default();
    let _watching = watch(events.clone());
    let limiter = limiter(&pool, |_| {});
    let each = |parts: &axum::http::request::Parts| {
        let customer = parts.headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or("1").to_owned();
        let month = Limit::calendar(100, Calendar::months(1)).anchor(&format!("2026-01-{customer:0>2}"));
        Some(Item::new(("monthly", month.build().expect("a limit")), customer))
    };
    let layer = RateLimitLayer::new(limiter).limit_by(each).on_failure(OnFailure::Open).in_handler();
    let served = Served::start(Router::new().route("/", get(|_: RequestLimits| async { "hello" })).layer(layer)).await;
    node.kill();
    let users: Vec<String> = (1..9).map(|user| user.to_string()).collect();
    let requests = users.iter().map(async |user| served.get("/", &[("x-user", user)]).await.status);
    assert_eq!(join_all(requests).await, [200; 8]);
    let told = events.told();
    let asked = told.matches("the window of a calendar limit is not known").count();
    assert!((1..4).contains(&asked), "{asked}: {told}");
}
