//! Handlers that take slots of concurrency limits themselves, with the layer's `in_handler`.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestLimits};
use pg_limiter::{Error, Item, Limit, Limiter, Limits};
use tokio::sync::broadcast;

use crate::support::web::Served;
use crate::support::{Database, Events, sqlx, watch};

const YEAR: Duration = Duration::from_secs(8766 * 3600);
const USER: (&str, &str) = ("x-user", "u1");

fn limits(lease: Duration) -> Limits {
    Limits::new()
        .define("running", Limit::concurrency(2).lease(lease))
        .and_then(|limits| limits.define("requests", Limit::token_bucket(100, YEAR)))
        .expect("limits")
}

fn layer(limiter: &Limiter) -> RateLimitLayer {
    let key = || HeaderKey::new("x-user").expect("a name");
    let layer = RateLimitLayer::new(limiter.clone()).limit("running", key());
    layer.and_then(|layer| layer.limit("requests", key())).expect("limits").cost(|_| 10)
}

async fn left(limiter: &Limiter) -> [f64; 2] {
    let items = [Item::new("running", "u1"), Item::new("requests", "u1")];
    let balances = limiter.peek(items).await.expect("balances");
    [balances[0].round(), balances[1].round()]
}

async fn until_left(limiter: &Limiter, expected: [f64; 2]) {
    for _ in 0..1_000 {
        if left(limiter).await == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{:?} are left, and not {expected:?}", left(limiter).await);
}

/// A body that ends when the sender sends.
fn open_body(end: &broadcast::Sender<()>) -> Body {
    let mut ended = end.subscribe();
    let rest = stream::once(async move {
        let _ = ended.recv().await;
        Ok::<_, std::io::Error>(Bytes::from_static(b"end"))
    });
    Body::from_stream(stream::once(async { Ok(Bytes::from_static(b"begin, ")) }).chain(rest))
}

#[derive(Clone)]
struct App {
    limiter: Limiter,
    end: broadcast::Sender<()>,
}

async fn own(State(app): State<App>, limits: RequestLimits) -> Result<Body, Error> {
    limits.enforce().await?;
    Ok(open_body(&app.end))
}

/// Takes them in its transaction, which commits or rolls back.
async fn within(app: &App, limits: RequestLimits, commits: bool) -> Result<Body, Error> {
    let mut tx = app.limiter.pool().begin().await.expect("begin");
    limits.enforce_within(&mut tx).await?;
    let ended = if commits { tx.commit().await } else { tx.rollback().await };
    ended.expect("ended");
    Ok(open_body(&app.end))
}

async fn work(State(app): State<App>, limits: RequestLimits) -> Result<Body, Error> {
    app.limiter.transaction(async move |tx: &mut sqlx::PgConnection| limits.enforce_within(tx).await.map(drop)).await?;
    Ok(open_body(&app.end))
}

async fn serve(limiter: &Limiter, layer: RateLimitLayer) -> (Served, broadcast::Sender<()>) {
    let (end, _) = broadcast::channel(8);
    let app = App { limiter: limiter.clone(), end: end.clone() };
    let router = Router::new()
        .route("/own", get(own))
        .route("/within", get(async |State(app): State<App>, limits: RequestLimits| within(&app, limits, true).await))
        .route(
            "/rolled-back",
            get(async |State(app): State<App>, limits: RequestLimits| within(&app, limits, false).await),
        )
        .route("/work", get(work))
        .layer(layer.in_handler())
        .with_state(app);
    (Served::start(router).await, end)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_takes_slots_and_tokens_and_its_response_holds_the_slots() {
    for path in ["/own", "/within", "/work"] {
        let database = Database::migrated().await;
        let limiter = database.limiter(limits(YEAR));
        let (served, end) = serve(&limiter, layer(&limiter)).await;
        let start = async || {
            let request = served.client.get(format!("{}{path}", served.url)).header(USER.0, USER.1);
            request.send().await.expect("a response")
        };
        let (first, second) = (start().await, start().await);
        assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200), "{path}");
        assert_eq!(left(&limiter).await, [0.0, 80.0], "{path}: one slot, and the cost in tokens");
        // All or none.
        let denied = served.get(path, &[USER]).await;
        assert_eq!(
            (denied.status, denied.problem()["violated-policies"].clone()),
            (429, serde_json::json!(["running"]))
        );
        assert_eq!(left(&limiter).await, [0.0, 80.0], "{path}");
        drop(first);
        until_left(&limiter, [1.0, 80.0]).await;
        end.send(()).expect("a response is open");
        assert_eq!(second.text().await.expect("a body"), "begin, end");
        until_left(&limiter, [2.0, 80.0]).await;
        // Without tokens, there is no slot either.
        assert!(limiter.limit(("requests", "u1", 75)).await.expect("a decision").is_allowed());
        let denied = served.get(path, &[USER]).await;
        assert_eq!(
            (denied.status, denied.problem()["violated-policies"].clone()),
            (429, serde_json::json!(["requests"]))
        );
        assert_eq!(left(&limiter).await, [2.0, 5.0], "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_a_handlers_transaction_are_renewed_after_its_commit_and_never_begin_after_a_rollback() {
    let events = Events::default();
    let _watched = watch(events.clone());
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(Duration::from_millis(1500)));
    let (served, _end) = serve(&limiter, layer(&limiter)).await;
    let start = async |path: &str| {
        let request = served.client.get(format!("{}{path}", served.url)).header(USER.0, USER.1);
        request.send().await.expect("a response")
    };
    let rolled_back = start("/rolled-back").await;
    let committed = start("/within").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((rolled_back.status(), committed.status()), (StatusCode::OK, StatusCode::OK));
    assert_eq!(left(&limiter).await, [1.0, 90.0], "the lease is renewed");
    drop((rolled_back, committed));
    until_left(&limiter, [2.0, 90.0]).await;
    assert!(!events.told().contains("lost"), "{}", events.told());
}

#[tokio::test]
async fn a_cost_of_zero_takes_no_slot() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(YEAR));
    let key = || HeaderKey::new("x-user").expect("a name");
    let slots = |cost: u32| {
        let layer = RateLimitLayer::new(limiter.clone()).limit_with_cost("running", key(), move |_| cost);
        layer.and_then(|layer| layer.limit("requests", key())).expect("limits")
    };
    // The key is full, so any other cost is denied.
    let acquired = limiter.acquire(("running", "u1", 2)).await.expect("a decision");
    assert!(acquired.is_allowed());
    let enforce = async |limits: RequestLimits| limits.enforce().await.map(|_| "done");
    let added = async |limits: RequestLimits| limits.and(("running", "u1", 0)).enforce().await.map(|_| "done");
    let app = |handler| Router::new().route("/", handler);
    for (nth, router, status) in [
        (1, app(get(enforce)).layer(slots(0).in_handler()), 200),
        (2, app(get(|| async { "done" })).layer(slots(0)), 200),
        (3, app(get(added)).layer(slots(0).in_handler()), 200),
        (4, app(get(added)).layer(RateLimitLayer::new(limiter.clone()).in_handler()), 200),
        (5, app(get(|| async { "done" })).layer(slots(1)), 429),
        (6, app(get(enforce)).layer(slots(1).in_handler()), 429),
    ] {
        assert_eq!(Served::start(router).await.get("/", &[USER]).await.status, status, "{nth}");
    }
    assert_eq!(left(&limiter).await, [0.0, 97.0], "those that were allowed took their token");
    // A part of a slot, and less than none, are errors of the program.
    for cost in [0.5, -1.0, f64::NAN] {
        let layer =
            RateLimitLayer::new(limiter.clone()).limit_with_cost("running", key(), move |_| cost).expect("a limit");
        let router = app(get(enforce)).layer(layer.in_handler());
        assert_eq!(Served::start(router).await.get("/", &[USER]).await.status, 500, "{cost}");
    }
    drop(acquired);
}

/// The layer has no limit of slots.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_can_add_slots_and_charge_them_twice() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(YEAR));
    let (end, _) = broadcast::channel::<()>(8);
    let ends = end.clone();
    let handler = move |limits: RequestLimits| async move {
        let limits = limits.and(("running", "u1"));
        limits.enforce().await?;
        limits.enforce().await?;
        Ok::<_, Error>(open_body(&ends))
    };
    let layer = RateLimitLayer::new(limiter.clone()).in_handler();
    let served = Served::start(Router::new().route("/", get(handler)).layer(layer)).await;
    let response = served.client.get(&served.url).send().await.expect("a response");
    assert_eq!((response.status().as_u16(), left(&limiter).await), (200, [0.0, 100.0]));
    assert_eq!(served.get("/", &[]).await.status, 429);
    end.send(()).expect("a response is open");
    assert_eq!(response.text().await.expect("a body"), "begin, end");
    until_left(&limiter, [2.0, 100.0]).await;
}

#[tokio::test]
async fn a_handler_that_fails_or_is_denied_gives_its_slots_back() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(YEAR));
    let fails = async |limits: RequestLimits| -> Result<Response, Error> {
        limits.clone().enforce().await?;
        limits.and(("requests", "u1", 85)).enforce().await?;
        Ok("done".into_response())
    };
    let served = Served::start(Router::new().route("/", get(fails)).layer(layer(&limiter).in_handler())).await;
    assert_eq!(served.get("/", &[USER]).await.status, 429);
    until_left(&limiter, [2.0, 90.0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_shadow_mode_a_handler_takes_slots_and_denies_nothing() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits(YEAR));
    for (nth, layer) in [(1, layer(&limiter).shadow()), (2, layer(&limiter).shadow_limit("running").expect("a limit"))]
    {
        for path in ["/own", "/within"] {
            let (served, _end) = serve(&limiter, layer.clone()).await;
            let mut open = Vec::new();
            for _ in 0..3 {
                let request = served.client.get(format!("{}{path}", served.url)).header(USER.0, USER.1);
                open.push(request.send().await.expect("a response"));
            }
            assert!(open.iter().all(|response| response.status() == 200), "{nth} {path}: {open:?}");
            let running = async || left(&limiter).await[0];
            for _ in 0..200 {
                if running().await == 0.0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(running().await, 0.0, "{nth} {path}");
            drop(open);
            for _ in 0..200 {
                if running().await == 2.0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(running().await, 2.0, "{nth} {path}");
            limiter.reset(("requests", "u1")).await.expect("reset");
        }
    }
}
