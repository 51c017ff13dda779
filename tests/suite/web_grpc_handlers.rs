//! gRPC handlers behind the layer: slots, corrections after trailers, and tokens in the handler's own transaction.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pg_limiter::sqlx;
use pg_limiter::web::{HeaderKey, RateLimitLayer, SentResponse};
use pg_limiter::{Limit, Limiter, Limits};
use tonic::Code;

use crate::support::grpc::{App, GrpcServed, call, fields as fields_of, request};
use crate::support::web::members;
use crate::support::{Database, Events, watch};

const YEAR: Duration = Duration::from_secs(8766 * 3600);

fn limits() -> Limits {
    Limits::new()
        .define("running", Limit::concurrency(2).lease(YEAR))
        .and_then(|limits| limits.define("tokens", Limit::token_bucket(100, YEAR)))
        .and_then(|limits| limits.define("orders", Limit::token_bucket(2, YEAR)))
        .expect("limits")
}

fn layer(limiter: &Limiter, limit: &str) -> RateLimitLayer {
    let key = HeaderKey::new("x-user").expect("a name");
    RateLimitLayer::new(limiter.clone()).limit(limit, key).expect("a limit")
}

async fn left(limiter: &Limiter, limit: &str) -> f64 {
    limiter.peek((limit, "u1")).await.expect("a balance").remaining().round()
}

async fn until_left(limiter: &Limiter, limit: &str, tokens: f64) {
    for _ in 0..1_000 {
        if left(limiter, limit).await == tokens {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{} of {limit} are left, and not {tokens}", left(limiter, limit).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_holds_its_slot_until_it_has_ended_or_its_client_is_gone() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    let served = GrpcServed::start(&app, layer(&limiter, "running")).await;
    let start = async || served.client().watch(request(call::STREAM, Some("u1"))).await;
    let mut first = start().await.expect("a stream").into_inner();
    let mut second = start().await.expect("a stream").into_inner();
    for stream in [&mut first, &mut second] {
        assert!(stream.message().await.expect("a message").is_some());
    }
    assert_eq!(left(&limiter, "running").await, 0.0);
    assert_eq!(start().await.expect_err("both slots are held").code(), Code::ResourceExhausted);
    let unary = served.check(call::SUCCEED, Some("u1")).await;
    assert_eq!(unary.expect_err("a unary call needs a slot, too").code(), Code::ResourceExhausted);

    drop(first); // The client goes away.
    until_left(&limiter, "running", 1.0).await;
    served.check(call::SUCCEED, Some("u1")).await.expect("a slot");
    until_left(&limiter, "running", 1.0).await;
    app.messages.send_replace(2);
    assert!(second.message().await.expect("a message").is_some());
    assert_eq!(left(&limiter, "running").await, 1.0);
    app.messages.send_replace(u64::MAX);
    assert!(second.message().await.expect("the end").is_none());
    until_left(&limiter, "running", 2.0).await;
}

/// A response in `settle`: its code, whether it had trailers, and whether it was sent as a whole.
type Sent = (Option<Code>, bool, bool);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settlement_sees_the_code_in_trailers_or_headers() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    let seen = Arc::<Mutex<Vec<Sent>>>::default();
    let closure = Arc::clone(&seen);
    let layer = layer(&limiter, "tokens").settle(move |_, response: &SentResponse| {
        let sent = (response.grpc_code(), response.trailers().is_some(), response.is_complete());
        closure.lock().expect("responses").push(sent);
        // Only failed log-ins count.
        response.grpc_code().map(|code| if code == Code::Unauthenticated { 1 } else { 0 })
    });
    let served = GrpcServed::start(&app, layer.clone()).await;
    let expect = async |sent: Sent, tokens| {
        until_left(&limiter, "tokens", tokens).await;
        for _ in 0..1_000 {
            if !seen.lock().expect("responses").is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(std::mem::take(&mut *seen.lock().expect("responses")), [sent]);
    };
    served.check(call::SUCCEED, Some("u1")).await.expect("a response");
    expect((Some(Code::Ok), true, true), 100.0).await;
    assert_eq!(served.check(call::FAIL, Some("u1")).await.expect_err("it fails").code(), Code::Unauthenticated);
    expect((Some(Code::Unauthenticated), false, true), 99.0).await;
    let mut stream = served.client().watch(request(call::FAIL, Some("u1"))).await.expect("a stream").into_inner();
    assert!(stream.message().await.expect("a message").is_some());
    assert_eq!(stream.message().await.expect_err("the trailers").code(), Code::Unauthenticated);
    expect((Some(Code::Unauthenticated), true, true), 98.0).await;

    let mut stream = served.client().watch(request(call::STREAM, Some("u1"))).await.expect("a stream").into_inner();
    assert!(stream.message().await.expect("a message").is_some());
    drop(stream); // The client goes away, so the token stays charged.
    expect((None, false, false), 97.0).await;
    layer.settled().await;
    assert_eq!((left(&limiter, "tokens").await, layer.settle_failures()), (97.0, 0));
}

#[tokio::test]
async fn a_handler_takes_tokens_in_its_own_transaction() {
    let database = Database::migrated().await;
    database.execute("CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY)").await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    let served = GrpcServed::start_service(&app, layer(&limiter, "orders").in_handler()).await;
    let events = Events::default();
    let watched = watch(events.clone());
    let response = served.check(call::ORDER, Some("u1")).await.expect("an order");
    assert_eq!(members(&response.metadata().clone().into_headers(), "ratelimit")[0].1["r"], 1);
    let failed = served.check(call::ORDER_AND_FAIL, Some("u1")).await.expect_err("it fails");
    assert_eq!(failed.code(), Code::Aborted);
    assert_eq!(left(&limiter, "orders").await, 1.0, "the token of the failed order is rolled back");
    served.check(call::ORDER, Some("u1")).await.expect("an order");

    let denied = served.check(call::ORDER, Some("u1")).await.expect_err("denied");
    assert_eq!(denied.code(), Code::ResourceExhausted, "{denied:?}");
    let fields = fields_of(&denied);
    let wait: i64 = fields["retry-after"].to_str().expect("text").parse().expect("a number");
    assert_eq!(members(&fields, "ratelimit")[0].1["t"], wait);
    let orders: i64 = sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&database.pool).await.expect("count");
    assert_eq!(orders, 2);

    let own = served.check(call::OWN_STATUS, Some("u1")).await.expect_err("denied");
    assert_eq!((own.code(), own.message()), (Code::ResourceExhausted, "slow down"));
    assert!(fields_of(&own).contains_key("retry-after"), "the layer adds it: {own:?}");

    // A handler that fails need not charge its limits, and one that succeeds must.
    assert_eq!(served.check(call::FAIL, Some("u1")).await.expect_err("it fails").code(), Code::Unauthenticated);
    assert!(!events.told().contains("without charging its limits"), "{}", events.told());
    served.check(call::SUCCEED, Some("u1")).await.expect("a response");
    assert!(events.told().contains("without charging its limits"), "{}", events.told());

    let without = GrpcServed::start_service(&app, layer(&limiter, "tokens")).await;
    let status = without.check(call::ORDER, Some("u1")).await.expect_err("no limits in the request");
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    assert!(events.told().contains("no RateLimitLayer with in_handler() wraps it"), "{}", events.told());
    drop(watched);
}

/// The status of an error has the denial as its source.
#[tokio::test]
async fn a_handlers_denial_by_a_limit_of_its_own_is_described_in_the_metadata() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    let layer = layer(&limiter, "tokens").x_ratelimit_headers();
    let served = [GrpcServed::start(&app, layer.clone()).await, GrpcServed::start_web(&app, layer).await];
    served[0].check(call::OWN_LIMIT, Some("u1")).await.expect("a response");
    for served in &served {
        let denied = served.check(call::OWN_LIMIT, Some("u1")).await.expect_err("denied");
        assert_eq!(denied.code(), Code::ResourceExhausted, "{denied:?}");
        let fields = fields_of(&denied);
        let number = |name: &str| fields[name].to_str().expect("text").parse::<i64>().expect("a number");
        let states = members(&fields, "ratelimit");
        assert_eq!(states.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["tokens", "own"], "{fields:?}");
        assert_eq!((states[1].1["r"], states[1].1["t"]), (0, number("retry-after")), "{fields:?}");
        assert_eq!(members(&fields, "ratelimit-policy")[1].1["q"], 1);
        assert_eq!((number("x-ratelimit-limit"), number("x-ratelimit-remaining")), (1, 0));
    }
}
