//! A CORS layer of tower-http around a rate limit, as the guide shows it: what a browser sends, and what its scripts can read.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::{HeaderName, Method, StatusCode, header};
use pg_limiter::web::{ClientAddress, RateLimitLayer};
use pg_limiter::{Limit, Limits};
use tower_http::cors::CorsLayer;

use crate::support::Database;
use crate::support::web::{Seen, Served};

const ORIGIN: &str = "https://app.example";

const EXPOSED: [HeaderName; 6] = [
    header::RETRY_AFTER,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin([ORIGIN.parse().expect("an origin")])
        .allow_methods([Method::GET])
        .allow_headers([header::AUTHORIZATION])
        .expose_headers(EXPOSED)
}

async fn preflight(served: &Served) -> Seen {
    let request = served.client.request(Method::OPTIONS, format!("{}/", served.url)).header("origin", ORIGIN);
    let request = request.header("access-control-request-method", "GET");
    let response = request.header("access-control-request-headers", "authorization").send().await.expect("a response");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Seen { status, headers, body: response.text().await.expect("a body") }
}

async fn ask(served: &Served) -> Seen {
    served.get("/", &[("origin", ORIGIN), ("authorization", "Bearer x")]).await
}

/// The names of the fields that a script of the origin may read.
fn readable(seen: &Seen) -> Vec<String> {
    if seen.header("access-control-allow-origin") != Some(ORIGIN) {
        return Vec::new();
    }
    let exposed = seen.header("access-control-expose-headers").unwrap_or_default();
    exposed.split(',').map(|name| name.trim().to_owned()).filter(|name| seen.headers.contains_key(name)).collect()
}

async fn layers() -> (Database, RateLimitLayer) {
    let database = Database::migrated().await;
    let limits = Limits::new().define("per_address", Limit::token_bucket(2, Duration::from_secs(8766 * 3600)));
    let layer = RateLimitLayer::new(database.limiter(limits.expect("a limit")));
    let layer = layer.limit("per_address", ClientAddress::direct()).expect("a limit").x_ratelimit_headers();
    (database, layer)
}

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn a_cors_layer_outside_answers_preflights_and_exposes_the_fields_of_denials() {
    let (database, layer) = layers().await;
    let served = Served::start(app().layer(layer).layer(cors())).await;
    for _ in 0..5 {
        let seen = preflight(&served).await;
        assert_eq!((seen.status, seen.header("access-control-allow-origin")), (200, Some(ORIGIN)));
    }
    assert_eq!(database.rows().await, 0, "preflights are charged nothing");
    for _ in 0..2 {
        let seen = ask(&served).await;
        let names =
            ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        assert_eq!((seen.status, readable(&seen)), (200, names.map(String::from).to_vec()));
    }
    let seen = ask(&served).await;
    assert_eq!((seen.status, readable(&seen)), (429, EXPOSED.map(|name| name.to_string()).to_vec()));
    assert_eq!(preflight(&served).await.status, 200, "a preflight is never denied");
}

/// Why the order matters: a browser hides the denial from the script, and the preflights use up the limit.
#[tokio::test]
async fn inside_of_the_rate_limit_a_cors_layer_hides_denials() {
    let (_database, layer) = layers().await;
    let served = Served::start(app().layer(cors()).layer(layer)).await;
    assert_eq!([preflight(&served).await.status, ask(&served).await.status], [200, 200]);
    let seen = ask(&served).await;
    assert_eq!((seen.status, readable(&seen)), (StatusCode::TOO_MANY_REQUESTS.as_u16(), vec![]));
    assert_eq!(preflight(&served).await.status, 429);
}

/// For a layer that cannot be inside of the CORS layer.
#[tokio::test]
async fn skipped_preflights_are_charged_nothing() {
    let (database, layer) = layers().await;
    let layer = layer.skip(|request| {
        request.method == Method::OPTIONS && request.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    });
    let served = Served::start(app().layer(cors()).layer(layer)).await;
    for _ in 0..3 {
        assert_eq!(preflight(&served).await.status, 200);
    }
    assert_eq!(database.rows().await, 0);
    // Other OPTIONS requests are requests.
    let options = served.client.request(Method::OPTIONS, format!("{}/", served.url)).send().await.expect("a response");
    assert!(options.headers().contains_key("ratelimit"));
}
