//! Responses of the layer to gRPC clients, over a socket.

use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use pg_limiter::sqlx::postgres::PgPoolOptions;
use pg_limiter::web::{ClientAddress, HeaderKey, Networks, OnFailure, RateLimitLayer};
use pg_limiter::{Error, InvalidCall, Limit, Limiter, LimiterConfig, Limits};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::{Service, ServiceExt};

use crate::support::grpc::{App, GrpcServed, call, fields, raw_request, request};
use crate::support::web::members;
use crate::support::{Database, Node};

const YEAR: Duration = Duration::from_secs(8766 * 3600);

fn limits() -> Limits {
    Limits::new()
        .define("one", Limit::token_bucket(1, YEAR))
        .and_then(|limits| limits.define("many", Limit::token_bucket(100, YEAR)))
        .expect("limits")
}

fn user() -> HeaderKey {
    HeaderKey::new("x-user").expect("a name")
}

fn layer(limiter: &Limiter) -> RateLimitLayer {
    let layer = RateLimitLayer::new(limiter.clone()).limit("one", user());
    layer.and_then(|layer| layer.limit("many", user())).expect("limits")
}

/// The names of the limits in `RateLimit`, with the remaining tokens.
fn standing(headers: &http::HeaderMap) -> Vec<(String, i64)> {
    members(headers, "ratelimit").into_iter().map(|(name, parameters)| (name, parameters["r"])).collect()
}

/// Asserts that the limit "one" denied the call.
fn is_denied(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.message(), "Rate limit exceeded: one. Retry after the time in Retry-After.");
    let details = status.check_error_details().expect("details");
    let delay = details.retry_info().and_then(|info| info.retry_delay).expect("a delay");
    assert!(delay > YEAR / 2 && delay <= YEAR, "{delay:?}");
    let violations = &details.quota_failure().expect("a failure").violations;
    assert_eq!(violations.iter().map(|violation| &*violation.subject).collect::<Vec<_>>(), ["one"]);
    let fields = fields(status);
    assert_eq!(fields["retry-after"], (delay - Duration::from_nanos(1)).as_secs().saturating_add(1).to_string());
    assert_eq!(standing(&fields), [("one".to_owned(), 0), ("many".to_owned(), 99)]);
    assert_eq!(members(&fields, "ratelimit-policy").len(), 2);
}

#[tokio::test]
async fn a_denied_call_has_a_status_with_details() {
    let database = Database::migrated().await;
    let served = GrpcServed::start(&App::new(&database.pool), layer(&database.limiter(limits()))).await;
    let response = served.check(call::SUCCEED, Some("u1")).await.expect("a response");
    let headers = response.metadata().clone().into_headers();
    assert_eq!(standing(&headers), [("one".to_owned(), 0), ("many".to_owned(), 99)]);
    is_denied(&served.check(call::SUCCEED, Some("u1")).await.expect_err("denied"));
    let stream = served.client().watch(request(call::STREAM, Some("u1"))).await;
    is_denied(&stream.expect_err("denied before the stream begins"));
    served.check(call::SUCCEED, Some("u2")).await.expect("another key");
}

/// The generated client does not show the frames: a refusal is one frame of headers, and a success keeps its trailers.
#[tokio::test]
async fn a_refusal_has_only_trailers_and_a_success_keeps_its_own() {
    let database = Database::migrated().await;
    let served = GrpcServed::start(&App::new(&database.pool), layer(&database.limiter(limits()))).await;
    let mut channel = served.channel.clone();
    let mut send = async |method, what| {
        let response = channel.ready().await.expect("ready").call(raw_request(method, what, "u1")).await;
        let (head, body) = response.expect("a response").into_parts();
        let has_ended = body.is_end_stream();
        let body = body.collect().await.expect("a body");
        let trailers = body.trailers().cloned();
        (head, has_ended, body.to_bytes().len(), trailers)
    };
    let (head, has_ended, length, trailers) = send("Check", call::SUCCEED).await;
    assert_eq!((head.status.as_u16(), has_ended, length), (200, false, 5), "an empty message in its frame");
    assert!(!head.headers.contains_key("grpc-status") && head.headers.contains_key("ratelimit"), "{head:?}");
    let trailers = trailers.expect("trailers");
    assert_eq!((&trailers["grpc-status"], trailers.len()), (&"0".parse().expect("a value"), 1), "{trailers:?}");
    for method in ["Check", "Watch"] {
        let (head, has_ended, length, trailers) = send(method, call::SUCCEED).await;
        assert_eq!((head.status.as_u16(), has_ended, length, trailers), (200, true, 0, None), "{head:?}");
        let text = |name: &str| head.headers[name].to_str().expect("text");
        assert_eq!((text("grpc-status"), text("content-type")), ("8", "application/grpc"));
        assert!(head.headers.contains_key("grpc-status-details-bin"), "{head:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_wrong_has_the_code_of_its_fault() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    let plain = || RateLimitLayer::new(limiter.clone());
    let by_user = || plain().limit("many", user()).expect("a limit");
    let all = || "0.0.0.0/0, ::/0".parse::<Networks>().expect("networks");
    let long = "k".repeat(1025);
    let cases = [
        (by_user(), None, Code::InvalidArgument, "has no usable key"),
        (by_user(), Some(&*long), Code::InvalidArgument, "longer than 1024 bytes"),
        (by_user().cost(|_| 101), Some("u1"), Code::InvalidArgument, "costs more than its rate limit many ever grants"),
        (plain().deny_networks(ClientAddress::direct(), all()), None, Code::PermissionDenied, "this address"),
        (by_user().cost(|_| -1.0), Some("u1"), Code::Internal, "The server failed."),
    ];
    for (layer, user, code, message) in cases {
        let served = GrpcServed::start(&app, layer).await;
        let status = served.check(call::SUCCEED, user).await.expect_err(message);
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(message), "{status:?}");
        assert!(fields(&status).get("retry-after").is_none() && !status.message().contains("kkk"), "{status:?}");
    }
    assert_eq!(limiter.peek(("many", "u1")).await.expect("a balance").remaining().round(), 100.0);
}

/// With the address that tonic knows, and without it.
#[tokio::test]
async fn the_peers_address_is_a_key() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    let layer = RateLimitLayer::new(limiter.clone()).limit("many", ClientAddress::direct()).expect("a limit");
    let served = GrpcServed::start(&app, layer.clone()).await;
    served.check(call::SUCCEED, None).await.expect("a response");
    assert_eq!(limiter.peek(("many", "127.0.0.1")).await.expect("a balance").remaining().round(), 99.0);
    let unknown = GrpcServed::start_service(&app, layer).await;
    let status = unknown.check(call::SUCCEED, None).await.expect_err("no address");
    assert_eq!(status.code(), Code::Internal, "{status:?}");
}

/// Errors have one classification for both protocols.
#[tokio::test]
async fn an_error_is_the_same_refusal_over_http_and_grpc() {
    let limit = || "a".to_owned();
    let reused: Error = InvalidCall::IdempotencyKeyReused.into();
    let cases = [
        (reused, 422, Code::InvalidArgument, false),
        (InvalidCall::UnknownLimit { limit: limit() }.into(), 500, Code::Internal, false),
        (Error::Aborted, 500, Code::Internal, false),
        (Error::Closed, 503, Code::Unavailable, true),
    ];
    for (error, http, code, waits) in cases {
        let response = pg_limiter::web::error_response(&error);
        let text = error.to_string();
        let status = Status::from(error);
        assert_eq!((response.status().as_u16(), status.code()), (http, code), "{text}");
        assert_eq!(response.headers().get("retry-after"), fields(&status).get("retry-after"), "{text}");
        assert_eq!(status.get_details_retry_info().is_some(), waits, "{text}");
        assert!(!status.message().contains(&text), "{status:?}");
        let source = std::error::Error::source(&status).and_then(|source| source.downcast_ref::<Error>());
        assert_eq!(source.map(ToString::to_string), Some(text), "for the server only");
        assert!(!String::from_utf8_lossy(status.details()).contains("closed"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_database_a_call_is_unavailable_or_passes_as_configured() {
    let mut node = Node::start(&[]).await;
    let pool = PgPoolOptions::new().max_connections(4).connect(&node.url()).await.expect("connect");
    pg_limiter::migrate::migrate(&pool).await.expect("migrate");
    let mut config = LimiterConfig::default();
    config.retry.deadline = Duration::from_secs(2);
    let limiter = Limiter::with_config(pool.clone(), limits(), config);
    let layer = RateLimitLayer::new(limiter).limit("many", user()).expect("a limit");
    let closed = GrpcServed::start(&App::new(&pool), layer.clone()).await;
    let open = GrpcServed::start(&App::new(&pool), layer.on_failure(OnFailure::Open)).await;
    closed.check(call::SUCCEED, Some("secret")).await.expect("a response");
    node.kill();
    for _ in 0..600 {
        // The server's other processes end when they notice.
        if closed.check(call::SUCCEED, Some("secret")).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let status = closed.check(call::SUCCEED, Some("secret")).await.expect_err("no decision");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(status.message(), "Rate limits cannot be checked at the moment; try again later.");
    let delay = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert_eq!(delay, Some(Duration::from_secs(1)));
    let headers = fields(&status);
    assert_eq!(headers["retry-after"], "1");
    assert!(!headers.contains_key("ratelimit"), "{headers:?}");
    assert!(status.get_details_quota_failure().is_none());
    open.check(call::SUCCEED, Some("secret")).await.expect("it passes");
}

#[tokio::test]
async fn a_request_that_is_not_grpc_has_a_response_of_http() {
    let database = Database::migrated().await;
    let served = GrpcServed::start(&App::new(&database.pool), layer(&database.limiter(limits()))).await;
    served.check(call::SUCCEED, Some("u1")).await.expect("a response");
    let client = reqwest::Client::new();
    for content_type in ["application/json", "application/grpc-other"] {
        let request = client.post(&served.url).header("content-type", content_type).header("x-user", "u1");
        let response = request.send().await.expect("a response");
        assert_eq!(response.status().as_u16(), 429);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        assert!(!response.headers().contains_key("grpc-status"));
        let problem: serde_json::Value = serde_json::from_str(&response.text().await.expect("a body")).expect("JSON");
        assert_eq!(problem["violated-policies"], serde_json::json!(["one"]));
    }
}

/// If `tonic_web` is inside, the layer responds to gRPC-Web itself: with trailers as headers, and no body. If it is outside, it
/// passes the same on.
#[tokio::test]
async fn a_grpc_web_client_gets_trailers_as_headers() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app = App::new(&database.pool);
    for (place, served) in [
        ("inside", GrpcServed::start(&app, layer(&limiter)).await),
        ("outside", GrpcServed::start_web(&app, layer(&limiter)).await),
    ] {
        let _ = served.check(call::SUCCEED, Some("u1")).await;
        for content_type in ["application/grpc-web+proto", "application/grpc-web-text+proto", "application/grpc-web"] {
            let request = reqwest::Client::new().post(format!("{}/grpc.health.v1.Health/Check", served.url));
            let request = request.header("content-type", content_type).header("accept", content_type);
            let response = request.header("x-user", "u1").body(vec![0; 5]).send().await.expect("a response");
            let headers = response.headers().clone();
            assert_eq!(response.status().as_u16(), 200, "{place}: {headers:?}");
            let family = content_type.trim_end_matches("+proto");
            assert!(headers["content-type"].to_str().expect("text").starts_with(family), "{place}: {headers:?}");
            is_denied(&Status::from_header_map(&headers).expect("a status"));
            let body = response.bytes().await.expect("a body");
            assert!(body.is_empty(), "{place}: {body:?}");
        }
    }
}
