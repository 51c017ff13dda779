//! The layer around plain tower services: any body, any error, any readiness.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use pg_limiter::web::{ClientAddress, PeerAddress, RateLimitLayer, RateLimitService, RequestLimits};
use pg_limiter::{Limit, Limits};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::support::Database;
use crate::support::web::members;

const YEAR: Duration = Duration::from_secs(8766 * 3600);

async fn layer() -> (Database, RateLimitLayer) {
    let database = Database::migrated().await;
    let limits = Limits::new().define("two", Limit::token_bucket(2, YEAR)).expect("a limit");
    let layer = RateLimitLayer::new(database.limiter(limits)).limit("two", ClientAddress::direct()).expect("a limit");
    (database, layer)
}

fn request(peer: &str) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    request.extensions_mut().insert(PeerAddress(peer.parse::<IpAddr>().expect("an address")));
    request
}

#[test]
fn layers_and_services_cross_threads() {
    fn everywhere<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
    everywhere::<RateLimitLayer>();
    everywhere::<RateLimitService<()>>();
    everywhere::<RequestLimits>();
    everywhere::<ClientAddress>();
}

#[tokio::test]
async fn a_plain_service_is_limited() {
    let (_database, layer) = layer().await;
    let hello = service_fn(|_: Request<Empty<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
    });
    let service = layer.layer(hello);
    for (peer, expected) in [("192.0.2.1", 200), ("192.0.2.1", 200), ("192.0.2.1", 429), ("2001:db8::1", 200)] {
        let response = service.clone().oneshot(request(peer)).await.expect("infallible");
        assert_eq!(response.status(), expected);
        assert_eq!(members(response.headers(), "ratelimit").len(), 1);
        let length = http_body::Body::size_hint(response.body()).exact().expect("a length");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body.len() as u64, length);
        assert_eq!(&body[..] == b"hello", expected == 200);
    }
}

/// Other layers produce such bodies.
#[tokio::test]
async fn any_body_type_works() {
    let (_database, layer) = layer().await;
    let boxed = |_: Request<Empty<Bytes>>| async {
        let body: UnsyncBoxBody<Bytes, std::io::Error> =
            Full::new(Bytes::from_static(b"hello")).map_err(|never| match never {}).boxed_unsync();
        Ok::<_, Infallible>(Response::new(body))
    };
    let service = ServiceBuilder::new().layer(layer.clone()).layer(layer).service_fn(boxed);
    let statuses = [service.clone().oneshot(request("192.0.2.1")).await, service.oneshot(request("192.0.2.1")).await];
    assert_eq!(statuses.map(|response| response.expect("infallible").status()), [200, 429], "each layer takes one");
}

#[tokio::test]
async fn errors_of_the_inner_service_pass_through_and_are_charged() {
    let (_database, layer) = layer().await;
    let broken = service_fn(|_: Request<Empty<Bytes>>| async {
        Err::<Response<Full<Bytes>>, _>(std::io::Error::other("it broke"))
    });
    let service = layer.layer(broken);
    for _ in 0..2 {
        let error = service.clone().oneshot(request("192.0.2.1")).await.expect_err("it is broken");
        assert_eq!(error.to_string(), "it broke");
    }
    let response = service.oneshot(request("192.0.2.1")).await.expect("the inner service is not called");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
}

/// `ConcurrencyLimit` panics if a service is called that was not polled ready, so the layer must call that service, and not a
/// clone.
#[tokio::test]
async fn the_service_that_was_ready_is_called() {
    let (_database, layer) = layer().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let inner = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(1)).service_fn(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }
    });
    let mut service = layer.layer(inner);
    for expected in [200, 200, 429, 429] {
        let ready = service.ready().await.expect("infallible");
        let response = ready.call(request("192.0.2.1")).await.expect("infallible");
        assert_eq!(response.status(), expected);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2, "denied requests do not reach the service");
}

/// Without axum, the limits are in the request's extensions.
#[tokio::test]
async fn a_plain_service_limits_in_its_own_transaction() {
    let (database, layer) = layer().await;
    let pool = database.pool.clone();
    let service = layer.in_handler().layer(service_fn(move |request: Request<Empty<Bytes>>| {
        let pool = pool.clone();
        async move {
            let limits = request.extensions().get::<RequestLimits>().expect("the layer's").clone();
            let mut tx = pool.begin().await.expect("begin");
            let status = match limits.enforce_within(&mut tx).await {
                Ok(_) => StatusCode::OK,
                Err(error) => pg_limiter::web::error_response(&error).status(),
            };
            tx.commit().await.expect("commit");
            Ok::<_, Infallible>(Response::builder().status(status).body(Full::<Bytes>::default()).expect("a response"))
        }
    }));
    for expected in [200, 200, 429] {
        let response = service.clone().oneshot(request("192.0.2.1")).await.expect("infallible");
        assert_eq!(response.status(), expected);
        assert_eq!(response.headers().contains_key("retry-after"), expected == 429);
        assert_eq!(members(response.headers(), "ratelimit-policy").len(), 1);
    }
}
