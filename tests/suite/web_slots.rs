//! Slots of a concurrency limit, held by requests until their responses have been sent.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use pg_limiter::web::{HeaderKey, RateLimitLayer};
use pg_limiter::{Limit, Limiter, Limits};
use tokio::sync::broadcast;

use crate::support::Database;
use crate::support::web::Served;

const USER: (&str, &str) = ("x-user", "u1");

/// Starts a server. Its responses end when the sender sends.
async fn serve(limiter: &Limiter) -> (Served, broadcast::Sender<()>) {
    let key = || HeaderKey::new("x-user").expect("a name");
    let layer = RateLimitLayer::new(limiter.clone())
        .limit("running", key())
        .and_then(|layer| layer.limit("requests", key()))
        .expect("limits")
        .cost(|_| 5);
    let (end, _) = broadcast::channel(8);
    let ends = end.clone();
    let handler = move || {
        let mut ended = ends.subscribe();
        let rest = stream::once(async move {
            let _ = ended.recv().await;
            Ok::<_, std::io::Error>(Bytes::from_static(b"end"))
        });
        let begin = stream::once(async { Ok(Bytes::from_static(b"begin, ")) });
        async move { Body::from_stream(begin.chain(rest)) }
    };
    (Served::start(Router::new().route("/", get(handler)).layer(layer)).await, end)
}

async fn until_free(limiter: &Limiter, slots: f64) {
    for _ in 0..1_000 {
        if limiter.peek(("running", "u1")).await.expect("a balance").remaining() == slots {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} slots are free", limiter.peek(("running", "u1")).await.expect("a balance").remaining());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_holds_a_slot_until_its_response_has_ended_or_its_client_is_gone() {
    let database = Database::migrated().await;
    let limits = Limits::new()
        .define("running", Limit::concurrency(2).lease(Duration::from_secs(600)))
        .and_then(|limits| limits.define("requests", Limit::token_bucket(1000, Duration::from_secs(3600))))
        .expect("limits");
    let limiter = database.limiter(limits);
    let (served, end) = serve(&limiter).await;
    let start = async || served.client.get(&served.url).header(USER.0, USER.1).send().await.expect("a response");
    let (first, second) = (start().await, start().await);
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    until_free(&limiter, 0.0).await;

    let denied = served.get("/", &[USER]).await;
    assert_eq!(denied.status, 429, "both slots are held while the responses are sent");
    assert!(denied.number("retry-after").is_some_and(|seconds| (1..=600).contains(&seconds)), "{denied:?}");
    let policies = denied.list("ratelimit-policy");
    let running = policies.iter().find(|(name, _)| name == "running").expect("a policy");
    assert_eq!((running.1.get("q"), running.1.get("w")), (Some(&2), None), "slots have no window");

    drop(first); // The client goes away.
    until_free(&limiter, 1.0).await;
    end.send(()).expect("a response is open");
    assert_eq!(second.text().await.expect("a body"), "begin, end");
    until_free(&limiter, 2.0).await;
    assert_eq!(
        limiter.peek(("requests", "u1")).await.expect("a balance").remaining().round(),
        990.0,
        "the cost is in tokens"
    );
}
