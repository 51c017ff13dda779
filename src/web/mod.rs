//! Limits for HTTP: a [tower] layer, and what handlers need to limit in their own transactions. Features `tower` and
//! `axum`.
//!
//! ```no_run
//! # #[cfg(feature = "axum")]
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use std::net::SocketAddr;
//! use std::time::Duration;
//! use axum::{Router, routing::get};
//! use pg_limiter::web::{ClientAddress, HeaderKey, RateLimitLayer, TrustedProxies};
//! use pg_limiter::{Limit, Limiter, Limits};
//!
//! let limits = Limits::new()
//!     .define("per_address", Limit::token_bucket(60, Duration::from_secs(60)))?
//!     .define("per_org", Limit::sliding_window(10_000, Duration::from_secs(3600)))?;
//! let proxies: TrustedProxies = "10.0.0.0/8, fd00::/8".parse()?;
//! let layer = RateLimitLayer::new(Limiter::new(pool, limits))
//!     .limit("per_address", ClientAddress::behind(proxies))?
//!     .limit("per_org", HeaderKey::new("x-org")?)?
//!     .skip(|request| request.uri.path() == "/health");
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! let listener = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # Ok(()) }
//! ```
//!
//! # How a request is decided
//! In one call, before the inner service sees it: all limits are charged, or none and the request is answered with 429. The
//! call is in the limiter's own transaction, so that its tokens stay spent whatever becomes of the request: if the inner
//! service answers 500, too, and if the client goes away meanwhile (they are taken or not, never in part). A layer cannot
//! be part of a handler's transaction; for that there is [`RateLimitLayer::in_handler`].
//!
//! Nothing is ever reserved for a request: it would have to be kept waiting.
//!
//! # Answers
//! | | |
//! |---|---|
//! | a limit refused | 429, `Retry-After`, the problem type `quota-exceeded` with its `violated-policies` |
//! | the request has no key, a key of more than 1024 bytes, or costs more than a limit ever grants | 400 |
//! | its idempotency key was used for another call (in handlers) | 422 |
//! | the database gave no decision, or too many calls wait for it | 503 and `Retry-After: 1`, or with [`OnFailure::Open`] what the inner service answers |
//! | the limits or keys are set up wrongly | 500 |
//!
//! Their bodies are `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). They tell the names of
//! limits and headers; no key, and nothing of the database. [`error_response`] makes them all, for handlers as well.
//!
//! Whether a request was allowed or refused, the response has the fields of
//! [draft-ietf-httpapi-ratelimit-headers](https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/) (10, and
//! 11, which has the same syntax), a member for each limit:
//!
//! ```text
//! RateLimit-Policy: "per_address";q=60;w=60, "per_org";q=10000;w=3600
//! RateLimit: "per_address";r=59;t=59, "per_org";r=730
//! ```
//!
//! - `q` is the limit's capacity, and `w` the time in which an empty bucket fills: its period, unless the capacity is not
//!   the rate. Left out below one second, which cannot be told.
//! - `r` is what is left, in whole tokens.
//! - `t`: of a limit that refused, `Retry-After`. Otherwise, for a token bucket, the time in which as many tokens arrive as
//!   are left, or until there is one: a client that spreads `r` over `t` keeps to the rate. Windows have none, because it
//!   is not known here where theirs ends; nor does a limit whose `t` would be later than `Retry-After`.
//! - `pk` is not sent: keys are personal data more often than not.
//!
//! Times are whole seconds, rounded up; tokens are rounded down. In the name of a limit, what a Structured Fields String
//! ([RFC 9651](https://www.rfc-editor.org/rfc/rfc9651)) cannot hold is percent-encoded, here and in `violated-policies`.
//! Several layers add members to the same fields.
//! [`x_ratelimit_headers`](RateLimitLayer::x_ratelimit_headers) adds the older trio. For scripts of other origins, name
//! them all in `Access-Control-Expose-Headers`.
//!
//! [tower]: https://docs.rs/tower

mod address;
mod answer;
mod keys;
mod layer;
mod note;
mod request_limits;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
mod axum;

#[cfg(feature = "axum")]
pub use self::axum::{NoRequestLimits, RouteKey};
pub use address::{ClientAddress, InvalidTrustedProxies, PeerAddress, TrustedProxies};
pub use answer::error_response;
pub use keys::{HeaderKey, KeyExtractor, KeyFn, NoKey, Or, OrShared, OrUnlimited, PathKey, key_fn};
pub use layer::{OnFailure, RateLimitLayer, RateLimitService, ResponseBody};
pub use request_limits::RequestLimits;
