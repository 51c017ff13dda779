//! The layer corrects what a request took to what it used, after its response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::stream;
use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestLimits};
use pg_limiter::{Limit, Limiter, Limits};
use tokio::sync::watch;

use crate::support::web::Served;
use crate::support::{Database, Events};

pub(crate) const YEAR: Duration = Duration::from_secs(8766 * 3600);
pub(crate) const USER: (&str, &str) = ("x-user", "u1");

pub(crate) fn limits() -> Limits {
    Limits::new()
        .define("tokens", Limit::token_bucket(100, YEAR))
        .and_then(|limits| limits.define("requests", Limit::token_bucket(100, YEAR)))
        .and_then(|limits| limits.define("slots", Limit::concurrency(5).lease(YEAR)))
        .expect("limits")
}

pub(crate) fn layer(limiter: &Limiter, names: &[&str]) -> RateLimitLayer {
    let key = || HeaderKey::new("x-user").expect("a name");
    names.iter().fold(RateLimitLayer::new(limiter.clone()), |layer, name| layer.limit(*name, key()).expect("a limit"))
}

pub(crate) async fn left(limiter: &Limiter, limit: &str) -> f64 {
    limiter.peek((limit, USER.1)).await.expect("a balance").remaining().round()
}

pub(crate) async fn until_left(limiter: &Limiter, limit: &str, tokens: f64) {
    for _ in 0..1_000 {
        if left(limiter, limit).await == tokens {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} of {limit} are left, and not {tokens}", left(limiter, limit).await);
}

pub(crate) async fn until(what: &str, is_true: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_true() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

/// A counter that a handler shares with the closure.
#[derive(Clone, Default)]
struct Usage(Arc<AtomicU64>);

#[tokio::test]
async fn only_failed_log_ins_count() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens"])
        .settle(|_, response| Some(if response.status() == StatusCode::UNAUTHORIZED { 1 } else { 0 }));
    let app = Router::new()
        .route("/right", get(|| async { "welcome" }))
        .route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }));
    let served = Served::start(app.layer(layer.clone())).await;
    for _ in 0..3 {
        assert_eq!(served.get("/right", &[USER]).await.status, 200);
        assert_eq!(served.get("/wrong", &[USER]).await.status, 401);
    }
    until_left(&limiter, "tokens", 97.0).await;
    layer.settled().await;
    assert_eq!(left(&limiter, "tokens").await, 97.0);
    assert_eq!(layer.settle_failures(), 0);
}

/// The closure sees the whole response, also one with an empty body that no server polls.
#[tokio::test]
async fn a_settlement_sees_the_request_and_the_sent_response() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let seen = Arc::<std::sync::Mutex<Vec<(String, u16, String, u64, bool)>>>::default();
    let closure = Arc::clone(&seen);
    let layer = layer(&limiter, &["tokens", "requests"]).settle(move |request, response| {
        let kind = response.headers().get("content-type").map(|kind| kind.to_str().expect("text").to_owned());
        closure.lock().expect("responses").push((
            request.uri.path().to_owned(),
            response.status().as_u16(),
            kind.unwrap_or_default(),
            response.body_bytes(),
            response.is_complete(),
        ));
        None::<u32>
    });
    let app = Router::new()
        .route("/text", get(|| async { "12345" }))
        .route("/empty", get(|| async { StatusCode::NO_CONTENT }))
        .route(
            "/broken",
            get(|| async {
                let parts = [Ok(Bytes::from_static(b"123")), Err(std::io::Error::other("broken"))];
                Body::from_stream(stream::iter(parts))
            }),
        );
    let served = Served::start(app.layer(layer)).await;
    for path in ["/text", "/empty"] {
        assert!(served.get(path, &[USER]).await.status < 300);
    }
    let broken = served.client.get(format!("{}/broken", served.url)).header(USER.0, USER.1).send();
    assert!(async { broken.await?.bytes().await }.await.is_err());
    until("six calls", || seen.lock().expect("responses").len() == 6).await;
    let text = |path: &str, status, kind: &str, bytes, whole| (path.to_owned(), status, kind.to_owned(), bytes, whole);
    let mut calls = seen.lock().expect("responses").clone();
    calls.sort();
    calls.dedup(); // Once for each limit.
    assert_eq!(
        calls,
        [
            text("/broken", 200, "", 3, false),
            text("/empty", 204, "", 0, true),
            text("/text", 200, "text/plain; charset=utf-8", 5, true),
        ]
    );
    assert_eq!(
        (left(&limiter, "tokens").await, left(&limiter, "requests").await),
        (97.0, 97.0),
        "None is the estimate"
    );
}

/// Serves a body; each part of it counts as 10 tokens. The sender ends it.
async fn streaming(limiter: &Limiter) -> (Served, watch::Sender<u64>) {
    let layer = layer(limiter, &["tokens", "slots"])
        .cost(|_| 40)
        .settle(|_, response| response.extensions().get::<Usage>().map(|usage| usage.0.load(Ordering::Relaxed)))
        .refund_incomplete();
    let (parts, _) = watch::channel(0);
    let receiver = parts.subscribe();
    let handler = move || {
        let (usage, receiver) = (Usage::default(), receiver.clone());
        let counted = usage.clone();
        let body = stream::unfold((0, receiver), move |(sent, mut parts)| {
            let counted = counted.clone();
            async move {
                let all = *parts.wait_for(|parts| *parts > sent).await.ok()?;
                if all == u64::MAX {
                    return None;
                }
                counted.0.fetch_add(10, Ordering::Relaxed);
                Some((Ok::<_, std::io::Error>(Bytes::from_static(b"part")), (sent + 1, parts)))
            }
        });
        async move { (Extension(usage), Body::from_stream(body)) }
    };
    (Served::start(Router::new().route("/", get(handler)).layer(layer)).await, parts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_body_is_settled_at_its_end() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let (served, parts) = streaming(&limiter).await;
    let request = served.client.get(&served.url).header(USER.0, USER.1);
    let mut response = request.send().await.expect("a response");
    for part in 1..=7 {
        parts.send_replace(part);
        assert_eq!(response.chunk().await.expect("a part").expect("a part").len(), 4);
        assert_eq!(left(&limiter, "tokens").await, 60.0, "until then, the estimate is charged");
    }
    parts.send_replace(u64::MAX);
    assert_eq!(response.chunk().await.expect("the end"), None);
    until_left(&limiter, "tokens", 30.0).await; // 70 were used, and 40 estimated.
    until_left(&limiter, "slots", 5.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_counts_as_it_goes_is_settled_when_its_client_goes_away() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let (served, parts) = streaming(&limiter).await;
    let request = served.client.get(&served.url).header(USER.0, USER.1);
    let mut response = request.send().await.expect("a response");
    parts.send_replace(1);
    assert!(response.chunk().await.expect("a part").is_some());
    assert_eq!(left(&limiter, "tokens").await, 60.0);
    drop(response);
    until_left(&limiter, "tokens", 90.0).await;
}

#[tokio::test]
async fn each_limit_has_its_own_settlement() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens", "requests"])
        .cost(|_| 10)
        .settle(|_, _| Some(1))
        .settle_limit("tokens", |_, response| Some(response.body_bytes()))
        .expect("a limit");
    let served = Served::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
    assert_eq!(served.get("/", &[USER]).await.body, "hello");
    until_left(&limiter, "tokens", 95.0).await;
    until_left(&limiter, "requests", 99.0).await;
}

#[tokio::test]
async fn nothing_is_given_back_that_was_not_taken() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let called = Arc::<AtomicU64>::default();
    let calls = Arc::clone(&called);
    let tried = layer(&limiter, &["tokens"]).cost(|_| 60).shadow().settle(move |_, _| {
        calls.fetch_add(1, Ordering::Relaxed);
        Some(0)
    });
    let app = |layer| Router::new().route("/", get(|| async { "hello" })).layer(layer);
    assert!(limiter.limit(("tokens", USER.1, 90)).await.expect("a decision").is_allowed());
    // In shadow mode the request passes, but takes nothing.
    let served = Served::start(app(tried.clone())).await;
    assert_eq!(served.get("/", &[USER]).await.status, 200);
    let skipped = Served::start(app(tried.skip(|_| true))).await;
    assert_eq!(skipped.get("/", &[USER]).await.status, 200);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((left(&limiter, "tokens").await, called.load(Ordering::Relaxed)), (10.0, 0));
}

#[tokio::test]
async fn limits_in_shadow_mode_are_settled_if_they_took_tokens() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens", "requests"])
        .shadow_limit("tokens")
        .expect("a limit")
        .cost(|_| 60)
        .settle(|_, _| Some(1));
    let served = Served::start(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await;
    assert_eq!(served.get("/", &[USER]).await.status, 200);
    until_left(&limiter, "tokens", 99.0).await;
    until_left(&limiter, "requests", 99.0).await;
    assert!(limiter.limit(("tokens", USER.1, 90)).await.expect("a decision").is_allowed());
    assert_eq!(served.get("/", &[USER]).await.status, 200);
    until_left(&limiter, "requests", 98.0).await;
    assert_eq!(left(&limiter, "tokens").await, 9.0, "a limit that would have denied is not settled");
}

#[tokio::test]
async fn what_a_handler_enforces_is_settled_unless_in_its_transaction() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens"]).cost(|_| 40).settle(|_, _| Some(3)).in_handler();
    let own = |limits: RequestLimits| async move { limits.enforce().await.map(|_| "done").into_response() };
    let pool = database.app.clone();
    let within = |limits: RequestLimits| async move {
        let mut tx = pool.begin().await.expect("begin");
        limits.enforce_within(&mut tx).await.expect("allowed");
        tx.rollback().await.expect("roll back");
        "rolled back"
    };
    let app = Router::new().route("/own", get(own)).route("/within", get(within)).layer(layer);
    let served = Served::start(app).await;
    assert_eq!(served.get("/own", &[USER]).await.body, "done");
    until_left(&limiter, "tokens", 97.0).await;
    assert_eq!(served.get("/within", &[USER]).await.body, "rolled back");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(left(&limiter, "tokens").await, 97.0);
}

#[tokio::test]
async fn the_estimate_stays_if_it_cannot_be_settled() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let is_down = Arc::<AtomicBool>::default();
    let broken = Arc::clone(&is_down);
    let layer = layer(&limiter, &["tokens"]).cost(|_| 10).settle(|request, _| match request.uri.path() {
        "/negative" => Some(-1.0),
        "/nan" => Some(f64::NAN),
        "/panic" => panic!("a bug in the closure"),
        _ => Some(1.0),
    });
    let pool = database.pool.clone();
    let handler = move || {
        let (pool, broken) = (pool.clone(), Arc::clone(&broken));
        async move {
            if broken.load(Ordering::Relaxed) {
                let rename = "ALTER TABLE rate_limit.rate_limits RENAME TO gone";
                pg_limiter::sqlx::raw_sql(rename).execute(&pool).await.expect("renamed");
            }
            "hello"
        }
    };
    let events = Events::default();
    let watched = crate::support::watch(events.clone());
    let served = Served::start(Router::new().fallback(get(handler)).layer(layer.clone())).await;
    for (nth, path) in (1..).zip(["/negative", "/nan", "/panic"]) {
        assert_eq!(served.get(path, &[USER]).await.body, "hello");
        until("a failure", || layer.settle_failures() == nth).await;
    }
    assert_eq!(left(&limiter, "tokens").await, 70.0);
    // The database fails between the decision and the end of the response.
    is_down.store(true, Ordering::Relaxed);
    assert_eq!(served.get("/", &[USER]).await.body, "hello");
    until("a failure", || layer.settle_failures() == 4).await;
    database.execute("ALTER TABLE rate_limit.gone RENAME TO rate_limits").await;
    assert_eq!(left(&limiter, "tokens").await, 60.0);
    drop(watched);
    let told = events.told();
    assert!(told.contains("its estimate stays charged") && !told.contains(USER.1), "{told}");
}
