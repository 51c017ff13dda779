//! Denials of handlers' own, inside of layers that allowed the request: their responses describe the limit that denied.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use http::StatusCode;
use pg_limiter::web::{HeaderKey, RateLimitLayer, RequestLimits};
use pg_limiter::{Error, Item, Limit, Limiter, Limits};

use crate::support::Database;
use crate::support::web::{Seen, Served};

const HOUR: Duration = Duration::from_secs(3600);

fn limits() -> Limits {
    Limits::new()
        .define("api", Limit::token_bucket(100, HOUR))
        .and_then(|limits| limits.define("outer", Limit::token_bucket(200, HOUR)))
        .and_then(|limits| limits.define("mails", Limit::sliding_window(1, HOUR)))
        .and_then(|limits| limits.define("banned", Limit::gate()))
        .expect("limits")
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct AppError(#[from] Error);

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

async fn mail(State(limiter): State<Limiter>) -> Result<&'static str, Error> {
    limiter.limit(("mails", "k")).await?.enforce()?;
    Ok("sent")
}

/// With an error type of the application's own, and two limits, of which one denies.
async fn wrapped(State(limiter): State<Limiter>) -> Result<&'static str, AppError> {
    limiter.limit([Item::new("mails", "k"), Item::new("outer", "k")]).await?.enforce()?;
    Ok("sent")
}

/// With a limit that neither the layer nor its limiter knows.
async fn inline(State(limiter): State<Limiter>) -> Result<&'static str, Error> {
    let plan = Limit::token_bucket(7, HOUR).build().expect("a limit");
    limiter.limit(Item::new(("plan", plan), "k").count(7)).await?.enforce()?;
    Ok("sent")
}

/// With a body of the handler's own.
async fn own_body(State(limiter): State<Limiter>) -> Response {
    match limiter.limit(("mails", "k")).await.and_then(pg_limiter::Decision::enforce) {
        Ok(_) => "sent".into_response(),
        Err(Error::Denied(denied)) => {
            (StatusCode::TOO_MANY_REQUESTS, Extension(denied), Json("slow down")).into_response()
        }
        Err(error) => error.into_response(),
    }
}

async fn banned(State(limiter): State<Limiter>) -> Result<&'static str, Error> {
    limiter.block(("banned", "k"), HOUR).await?;
    limiter.limit(("banned", "k")).await?.enforce()?;
    Ok("sent")
}

/// Says "429" for a reason that is no limit of this library, such as a third party's.
async fn unexplained() -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "30")], "busy").into_response()
}

/// Takes the layer's tokens, and then those of a limit of its own.
async fn both(State(limiter): State<Limiter>, limits: RequestLimits) -> Result<&'static str, Error> {
    limits.enforce().await?;
    limiter.limit(("mails", "k")).await?.enforce()?;
    Ok("sent")
}

fn layer(limiter: &Limiter, limit: &str) -> RateLimitLayer {
    let key = HeaderKey::new("x-user").expect("a name");
    RateLimitLayer::new(limiter.clone()).limit(limit, key).expect("a limit").x_ratelimit_headers()
}

fn routes(limiter: &Limiter) -> Router {
    Router::new()
        .route("/mail", get(mail))
        .route("/wrapped", get(wrapped))
        .route("/inline", get(inline))
        .route("/own_body", get(own_body))
        .route("/banned", get(banned))
        .route("/unexplained", get(unexplained))
        .with_state(limiter.clone())
}

async fn ask(served: &Served, path: &str) -> Seen {
    served.get(path, &[("x-user", "u1")]).await
}

fn names(seen: &Seen, field: &str) -> Vec<String> {
    seen.list(field).into_iter().map(|(name, _)| name).collect()
}

fn trio(seen: &Seen) -> [Option<i64>; 3] {
    ["limit", "remaining", "reset"].map(|name| seen.number(&format!("x-ratelimit-{name}")))
}

#[tokio::test]
async fn a_handlers_denial_has_the_fields_of_the_limit_that_denied() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let served = Served::start(routes(&limiter).layer(layer(&limiter, "api")).layer(layer(&limiter, "outer"))).await;
    for path in ["/mail", "/inline"] {
        let seen = ask(&served, path).await;
        assert_eq!((seen.status, names(&seen, "ratelimit")), (200, vec!["api".to_owned(), "outer".to_owned()]));
    }
    for (path, name, quota, window) in [
        ("/mail", "mails", 1, Some(3600)),
        ("/wrapped", "mails", 1, Some(3600)),
        ("/own_body", "mails", 1, Some(3600)),
        ("/inline", "plan", 7, None),
    ] {
        let seen = ask(&served, path).await;
        assert_eq!(seen.status, 429, "{path}: {seen:?}");
        let retry_after = seen.number("retry-after").expect("a time");
        assert!(retry_after > 1, "{path}");
        assert_eq!(names(&seen, "ratelimit"), ["api", name, "outer"], "{path}: each once");
        assert_eq!(names(&seen, "ratelimit-policy"), ["api", name, "outer"], "{path}");
        let (policy, state) = (&seen.list("ratelimit-policy")[1].1, &seen.list("ratelimit")[1].1);
        assert_eq!((policy["q"], policy.get("w").copied()), (quota, window), "{path}");
        assert_eq!((state["r"], state["t"]), (0, retry_after), "{path}");
        assert_eq!(trio(&seen), [Some(quota), Some(0), Some(retry_after)], "{path}");
        assert!(seen.list("ratelimit").iter().all(|(_, state)| state.get("t").is_none_or(|t| *t <= retry_after)));
    }
    let seen = ask(&served, "/own_body").await;
    assert_eq!(seen.body, "\"slow down\"");
    // A gate has no tokens to describe.
    let seen = ask(&served, "/banned").await;
    assert_eq!((seen.status, names(&seen, "ratelimit")), (429, vec!["api".to_owned(), "outer".to_owned()]));
    assert_eq!((trio(&seen), seen.number("retry-after").is_some()), ([None; 3], true));
}

#[tokio::test]
async fn a_429_for_another_reason_is_not_described_by_limits_that_allowed_it() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let served = Served::start(routes(&limiter).layer(layer(&limiter, "api"))).await;
    let seen = ask(&served, "/unexplained").await;
    assert_eq!((seen.status, seen.body.as_str(), seen.number("retry-after")), (429, "busy", Some(30)));
    // The fields with names still describe the layer's limits.
    assert_eq!((names(&seen, "ratelimit"), seen.list("ratelimit")[0].1["r"]), (vec!["api".to_owned()], 99));
    assert_eq!(trio(&seen), [None; 3]);
}

#[tokio::test]
async fn layers_that_publish_no_fields_publish_none_for_a_handlers_denial() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let by_user = || HeaderKey::new("x-user").expect("a name");
    let hidden = RateLimitLayer::new(limiter.clone()).limit("api", by_user()).expect("a limit");
    let shadow = hidden.clone().shadow();
    for layer in [hidden.without_ratelimit_headers(), shadow] {
        let served = Served::start(routes(&limiter).layer(layer)).await;
        let _ = ask(&served, "/mail").await;
        let seen = ask(&served, "/mail").await;
        assert!(seen.status == 429 && seen.number("retry-after").is_some(), "{seen:?}");
        assert!(seen.list("ratelimit").is_empty() && seen.list("ratelimit-policy").is_empty(), "{seen:?}");
    }
}

#[tokio::test]
async fn a_handler_that_charges_the_layers_limits_and_its_own_is_described_by_both() {
    let database = Database::migrated().await;
    let limiter = database.limiter(limits());
    let app =
        Router::new().route("/", get(both).layer(layer(&limiter, "api").in_handler())).with_state(limiter.clone());
    let served = Served::start(app).await;
    assert_eq!(ask(&served, "/").await.status, 200);
    let seen = ask(&served, "/").await;
    let retry_after = seen.number("retry-after").expect("a time");
    assert_eq!((seen.status, names(&seen, "ratelimit")), (429, vec!["api".to_owned(), "mails".to_owned()]));
    assert_eq!((seen.list("ratelimit")[0].1["r"], seen.list("ratelimit")[1].1["t"]), (98, retry_after));
    assert_eq!(trio(&seen), [Some(1), Some(0), Some(retry_after)]);
}
