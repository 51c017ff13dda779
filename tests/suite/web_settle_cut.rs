//! Requests that only the handler charges are settled. Responses that are cut keep their estimate.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode};
use pg_limiter::web::{HeaderKey, KeyExtractor, RateLimitLayer, RequestHold, RequestLimits};
use tokio::sync::watch;

use crate::support::web::Served;
use crate::support::{Database, Events};
use crate::web_settle::{USER, layer, left, limits, until, until_left};

/// Long enough for a settlement that must not happen.
const A_WHILE: Duration = Duration::from_millis(300);

/// A request without an item of the layer.
#[tokio::test]
async fn what_only_the_handler_charges_is_settled() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let key = || HeaderKey::new("x-user").expect("a name");
    let new = || RateLimitLayer::new(limiter.clone());
    let with_limit = |key| new().limit("tokens", key).expect("a limit");
    let without_items = [
        ("none is configured", new()),
        ("no key", new().limit("tokens", key().or_unlimited()).expect("a limit")),
        ("skipped", with_limit(key()).skip(|_| true)),
        ("none is chosen", new().limit_by(|_| None)),
    ];
    for (why, layer) in without_items {
        let layer = layer.settle(|_, _| Some(7)).in_handler();
        let handler = |limits: RequestLimits| async move {
            assert!(limits.items().is_empty());
            limits.and(("requests", "u1", 40)).enforce().await.map(|_| "done").into_response()
        };
        let served = Served::start(Router::new().route("/", get(handler)).layer(layer.clone())).await;
        limiter.reset(("requests", "u1")).await.expect("reset");
        assert_eq!(served.get("/", &[]).await.body, "done", "{why}");
        until_left(&limiter, "requests", 93.0).await;
        assert_eq!(layer.settle_failures(), 0);
    }
    // A failure is counted, and so is one of a limit that is only settled by its name.
    let broken = new().settle_limit("requests", |_, _| Some(-1)).expect("a limit").in_handler();
    let handler = |limits: RequestLimits| async move {
        limits.and(("requests", "u1", 40)).enforce().await.map(|_| "done").into_response()
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(broken.clone())).await;
    assert_eq!(served.get("/", &[]).await.body, "done");
    until("a failure", || broken.settle_failures() == 1).await;
}

/// Every charge of a handler is settled, also one during the response.
#[tokio::test]
async fn a_handler_that_charges_several_times_is_settled_each_time() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let new = || RateLimitLayer::new(limiter.clone()).shadow_limit("tokens").expect("a limit");
    let layer = new().settle(|_, _| Some(1)).in_handler();
    let handler = |limits: RequestLimits| async move {
        limits.clone().and(("requests", "u1", 10)).and(("tokens", "u1", 5)).enforce().await.expect("allowed");
        limits.clone().and(("requests", "u1", 10)).and(("tokens", "u1", 5)).enforce().await.expect("allowed");
        let part = move |nth: u32| {
            let limits = limits.clone().and(("requests", "u1", 10));
            async move { limits.enforce().await.map(|_| Bytes::from(nth.to_string())) }
        };
        Body::from_stream(stream::iter(1..=3).then(part))
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer)).await;
    assert_eq!(served.get("/", &[]).await.body, "123");
    until_left(&limiter, "requests", 95.0).await;
    until_left(&limiter, "tokens", 98.0).await;
}

#[tokio::test]
async fn a_charge_after_the_response_is_reported() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let events = Events::default();
    let _watched = crate::support::watch(events.clone());
    let (done, mut is_done) = watch::channel(0);
    let (go, _) = watch::channel(false);
    let signal = go.clone();
    let layer = RateLimitLayer::new(limiter.clone()).settle(|_, _| Some(1)).in_handler();
    let handler = move |limits: RequestLimits| {
        let (done, mut go) = (done.clone(), signal.subscribe());
        async move {
            tokio::spawn(async move {
                go.wait_for(|go| *go).await.expect("a signal");
                limits.and(("requests", "u1", 10)).and(("slots", "u1")).enforce().await.expect("allowed");
                done.send_replace(1);
            });
            "done"
        }
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer.clone())).await;
    assert_eq!(served.get("/", &[]).await.body, "done");
    until("the response has ended", || true).await;
    tokio::time::sleep(A_WHILE).await;
    go.send_replace(true);
    is_done.wait_for(|done| *done == 1).await.expect("done");
    until_left(&limiter, "slots", 5.0).await;
    assert_eq!(left(&limiter, "requests").await, 90.0);
    let told = events.told();
    assert!(told.contains("after the response had been sent") && told.contains("requests"), "{told}");
    assert!(!told.contains("u1"), "{told}");
}

/// A counter that is set at the end of a stream, as providers of language models report the usage.
#[derive(Clone, Default)]
struct Reported(Arc<AtomicU64>);

/// Serves an endless body, or one that reports its usage after its second part.
async fn reporting(layer: RateLimitLayer) -> Served {
    let part = |usage: Reported, ends: bool| {
        stream::unfold(0, move |nth| {
            let usage = usage.clone();
            async move {
                if nth == 2 && ends {
                    usage.0.store(25, Ordering::Relaxed);
                    return None;
                }
                if nth == 2 {
                    std::future::pending::<()>().await;
                }
                Some((Ok::<_, std::io::Error>(Bytes::from_static(b"part")), nth + 1))
            }
        })
    };
    let handler = move |ends: bool| {
        move || async move {
            let usage = Reported::default();
            (Extension(usage.clone()), Body::from_stream(part(usage, ends)))
        }
    };
    Served::start(Router::new().route("/whole", get(handler(true))).route("/cut", get(handler(false))).layer(layer))
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_keeps_its_estimate() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens", "slots"])
        .cost(|_| 40)
        .settle(|_, response| response.extensions().get::<Reported>().map(|usage| usage.0.load(Ordering::Relaxed)));
    let served = reporting(layer.clone()).await;
    assert_eq!(served.get("/whole", &[USER]).await.body, "partpart");
    until_left(&limiter, "tokens", 75.0).await;
    let request = served.client.get(format!("{}/cut", served.url)).header(USER.0, USER.1);
    let mut response = request.send().await.expect("a response");
    assert!(response.chunk().await.expect("a part").is_some());
    assert_eq!((left(&limiter, "tokens").await, left(&limiter, "slots").await), (35.0, 4.0));
    drop(response);
    until_left(&limiter, "slots", 5.0).await;
    layer.settled().await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(left(&limiter, "tokens").await, 35.0, "what it used is not known");
    assert_eq!(layer.settle_failures(), 0);
}

/// A closure that knows that more was used than estimated is right in any case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_is_charged_if_it_has_used_more_than_its_estimate() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens"]).cost(|_| 40).settle(|request, _| match request.uri.query() {
        Some("wrong") => Some(-1.0),
        _ => Some(50.0),
    });
    let served = reporting(layer.clone()).await;
    let cut = async |path: &str| {
        let request = served.client.get(format!("{}{path}", served.url)).header(USER.0, USER.1);
        let mut response = request.send().await.expect("a response");
        assert!(response.chunk().await.expect("a part").is_some());
    };
    cut("/cut").await;
    until_left(&limiter, "tokens", 50.0).await;
    assert_eq!(layer.settle_failures(), 0);
    // A mistake of the closure is reported in any case.
    cut("/cut?wrong").await;
    until("a failure", || layer.settle_failures() == 1).await;
    assert_eq!(left(&limiter, "tokens").await, 10.0);
}

/// The pattern of the documentation is safe also with `refund_incomplete`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_that_is_not_set_keeps_the_estimate() {
    #[derive(Clone, Default)]
    struct Usage(Arc<OnceLock<u64>>);
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens", "slots"])
        .cost(|_| 40)
        .settle(|_, response| response.extensions().get::<Usage>()?.0.get().copied())
        .refund_incomplete();
    let handler = || async {
        let body =
            stream::once(async { Ok(Bytes::from_static(b"part")) }).chain(stream::pending::<std::io::Result<_>>());
        (Extension(Usage::default()), Body::from_stream(body))
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer.clone())).await;
    let mut response = served.client.get(&served.url).header(USER.0, USER.1).send().await.expect("a response");
    assert!(response.chunk().await.expect("a part").is_some());
    drop(response);
    until_left(&limiter, "slots", 5.0).await;
    layer.settled().await;
    assert_eq!(left(&limiter, "tokens").await, 60.0);
}

/// A body that fails is cut, too.
#[tokio::test]
async fn a_body_that_fails_keeps_its_estimate() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens", "slots"]).cost(|_| 40).settle(|_, _| Some(0));
    let handler = || async {
        let parts = [Ok(Bytes::from_static(b"123")), Err(std::io::Error::other("the model is gone"))];
        Body::from_stream(stream::iter(parts))
    };
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer.clone())).await;
    let request = served.client.get(&served.url).header(USER.0, USER.1).send();
    assert!(async { request.await?.bytes().await }.await.is_err());
    until_left(&limiter, "slots", 5.0).await;
    layer.settled().await;
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(left(&limiter, "tokens").await, 60.0);
}

/// Servers do not poll the end of every body.
#[tokio::test]
async fn a_response_whose_end_no_server_asks_for_is_complete() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let seen = Arc::<Mutex<Vec<(Method, String, bool)>>>::default();
    let calls = Arc::clone(&seen);
    let layer = layer(&limiter, &["tokens"]).settle(move |request, response| {
        let call = (request.method.clone(), request.uri.path().to_owned(), response.is_complete());
        calls.lock().expect("calls").push(call);
        Some(0)
    });
    let sized = || async {
        let body = Body::from_stream(stream::iter([Ok::<_, std::io::Error>("12"), Ok("345")]));
        Response::builder().header("content-length", "5").body(body).expect("a response")
    };
    let streamed = || async { Body::from_stream(stream::iter([Ok::<_, std::io::Error>("12345")])) };
    let app = Router::new()
        .route("/sized", any(sized))
        .route("/streamed", any(streamed))
        .route("/text", any(|| async { "12345" }))
        .route("/empty", any(|| async { StatusCode::NO_CONTENT }))
        .route(
            "/unchanged",
            any(|| async {
                (StatusCode::NOT_MODIFIED, Body::from_stream(stream::iter([Ok::<_, std::io::Error>("12345")])))
            }),
        )
        .route("/error", any(|| async { (StatusCode::INTERNAL_SERVER_ERROR, "12345") }))
        .layer(layer.clone());
    let served = Served::start(app).await;
    for path in ["/sized", "/streamed", "/text", "/empty", "/unchanged", "/error"] {
        for method in [Method::GET, Method::HEAD, Method::POST] {
            let request = served.client.request(method.clone(), format!("{}{path}", served.url)).header(USER.0, USER.1);
            request.send().await.expect("a response").bytes().await.expect("a body");
            let is_seen = || seen.lock().expect("calls").contains(&(method.clone(), path.to_owned(), true));
            until(&format!("{method} {path} is complete"), is_seen).await;
        }
    }
    until_left(&limiter, "tokens", 100.0).await;
    assert_eq!(seen.lock().expect("calls").len(), 18);
}

/// A task that works on after the response.
#[tokio::test]
async fn a_task_holds_what_its_request_took_after_the_response() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let layer = layer(&limiter, &["tokens", "slots"]).cost(|_| 40).settle(|_, _| Some(3));
    let (end, _) = watch::channel("");
    let ends = end.clone();
    let handler = move |hold: RequestHold| {
        let mut end = ends.subscribe();
        async move {
            tokio::spawn(async move {
                match *end.wait_for(|end| !end.is_empty()).await.expect("an end") {
                    "finished" => hold.finish(),
                    _ => drop(hold),
                }
            });
            StatusCode::ACCEPTED
        }
    };
    let refuses = |hold: RequestHold| async move {
        drop(hold);
        StatusCode::BAD_REQUEST
    };
    let app = Router::new().route("/", get(handler)).route("/refuses", get(refuses));
    let served = Served::start(app.layer(layer)).await;
    for (how, tokens) in [("finished", 97.0), ("dropped", 60.0)] {
        limiter.reset(("tokens", USER.1)).await.expect("reset");
        end.send_replace("");
        assert_eq!(served.get("/", &[USER]).await.status, 202);
        tokio::time::sleep(A_WHILE).await;
        assert_eq!((left(&limiter, "tokens").await, left(&limiter, "slots").await), (60.0, 4.0), "{how}");
        end.send_replace(how);
        until_left(&limiter, "slots", 5.0).await;
        until_left(&limiter, "tokens", tokens).await;
    }
    // A hold that ends before the response cuts nothing off.
    limiter.reset(("tokens", USER.1)).await.expect("reset");
    assert_eq!(served.get("/refuses", &[USER]).await.status, 400);
    until_left(&limiter, "tokens", 97.0).await;
    until_left(&limiter, "slots", 5.0).await;
}
