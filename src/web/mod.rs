//! Rate limits for HTTP and gRPC: a [tower] layer, and [`RequestLimits`] for handlers that take tokens in their own
//! transactions. Requires the feature `tower`. The feature `axum` adds extractors and responses for axum, and the feature
//! `tonic` adds [responses to gRPC clients](#grpc).
//!
//! ```no_run
//! # #[cfg(feature = "axum")]
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use std::net::SocketAddr;
//! use std::time::Duration;
//! use axum::{Router, routing::get};
//! use pg_limiter::web::{ClientAddress, HeaderKey, KeyExtractor, RateLimitLayer, TrustedProxies};
//! use pg_limiter::{Limit, Limiter, Limits};
//!
//! let limits = Limits::new()
//!     .define("per_address", Limit::token_bucket(60, Duration::from_secs(60)))?
//!     .define("per_org", Limit::sliding_window(10_000, Duration::from_secs(3600)))?;
//! let proxies: TrustedProxies = "10.0.0.0/8, fd00::/8".parse()?;
//! let layer = RateLimitLayer::new(Limiter::new(pool, limits))
//!     .limit("per_address", ClientAddress::behind(proxies))?
//!     .limit("per_org", HeaderKey::new("x-org")?.or_unlimited())?
//!     .skip(|request| request.uri.path() == "/health");
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! let listener = tokio::net::TcpListener::bind("0.0.0.0:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
//! # Ok(()) }
//! ```
//!
//! # How a request is decided
//! The layer decides in one call, before the inner service gets the request. Either all limits are charged, or none is and
//! the response is 429. The call runs in the limiter's own transaction, so its tokens stay spent whatever happens to the
//! request, even if the inner service responds with 500. If the client disconnects meanwhile, the tokens are taken or not,
//! never in part.
//!
//! A layer cannot run in a handler's transaction. To take the tokens there, use [`RateLimitLayer::in_handler`].
//!
//! [`settle`](RateLimitLayer::settle) corrects the charge once the response has been sent, and
//! [`limit_by`](RateLimitLayer::limit_by) chooses limits per request.
//!
//! A request holds its slots of [concurrency limits](crate::Limit::concurrency) until its response has been sent. For WebSockets and
//! other upgraded connections, and for tasks that work on after the response, [`RequestHold`] holds them longer.
//!
//! The layer never reserves tokens, because a request with a reservation would have to wait.
//!
//! # Responses
//! | | HTTP | gRPC |
//! |---|---|---|
//! | a limit denies the request | 429, `Retry-After`, the problem type `quota-exceeded` with its `violated-policies` | `RESOURCE_EXHAUSTED`, `retry-after`, `RetryInfo`, `QuotaFailure` |
//! | the request has no usable key (see [`KeyExtractor`]), or costs more than a limit ever grants | 400 | `INVALID_ARGUMENT` |
//! | its address is in a [denied network](RateLimitLayer::deny_networks) | 403 | `PERMISSION_DENIED` |
//! | its idempotency key was used for another call (only in handlers) | 422 | `INVALID_ARGUMENT` |
//! | the database made no decision, too many calls wait for it, or a limit could not be [looked up](RateLimitLayer::limit_by_async); with [`OnFailure::Open`], the request passes | 503, `Retry-After: 1` | `UNAVAILABLE`, `retry-after: 1`, `RetryInfo` |
//! | the limits or keys are misconfigured | 500 | `INTERNAL` |
//!
//! The bodies over HTTP are `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). They contain names of
//! limits and headers, but no keys and no details of the database. Handlers can create the same responses with
//! [`error_response`].
//!
//! The response to a request that was allowed or denied has the fields of
//! [draft-ietf-httpapi-ratelimit-headers](https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/) (version
//! 10, and version 11, which has the same syntax), with one member for each limit:
//!
//! ```text
//! RateLimit-Policy: "per_address";q=60;w=60, "per_org";q=10000;w=3600
//! RateLimit: "per_address";r=59;t=1, "per_org";r=730;t=1204
//! ```
//!
//! - `q` is the limit's capacity.
//! - `w` is the time in which an empty bucket fills: the period, if the capacity equals the rate. It is left out below one
//!   second, which the field cannot express. For a [calendar window](crate::Kind::CalendarWindow), it is the length of the
//!   present window, which the layer asks the database for once in each window, if there are no more than
//!   1,000 such limits; without an answer, `w` is left out. A
//!   concurrency limit has no `w`.
//! - `r` is the number of whole tokens left.
//! - `t` of a limit that denied the request is `Retry-After`. For any other limit, it is the time from the response until `r`
//!   grows or the window ends, on the database's clock: until the next token of a token bucket; until the end of a fixed or
//!   calendar window, or of the sub-interval of a sliding window. A fixed window that grants less than one token, or owes some, has
//!   the time until the window that adds one. A full token bucket and a concurrency limit have no `t`. A `t` later than
//!   `Retry-After` is left out.
//! - `pk` is not sent: keys are often personal data.
//!
//! Times are in whole seconds, rounded up; tokens are rounded down. Characters of a limit's name that a Structured Fields
//! String ([RFC 9651](https://www.rfc-editor.org/rfc/rfc9651)) cannot contain are percent-encoded, here and in
//! `violated-policies`. Several layers add members to the same fields.
//!
//! A handler that denies by a limit of its own has that limit in the fields, too: see [`error_response`].
//!
//! # gRPC
//! With the feature `tonic`, a request of the content type `application/grpc`, `application/grpc-web` or
//! `application/grpc-web-text`, with any message format, gets a gRPC status in place of a problem. Without the feature, it gets
//! the response over HTTP, and its client reports 429 and 503 as `UNAVAILABLE`.
//!
//! - The response has only trailers ("Trailers-Only"): HTTP 200 with `grpc-status`, `grpc-message` and
//!   `grpc-status-details-bin` among its headers, and no body. All kinds of calls accept it, and gRPC-Web, too.
//! - The details are [`google.rpc`](https://github.com/googleapis/googleapis/blob/master/google/rpc/error_details.proto)
//!   messages. `RetryInfo` has the exact time, and the metadata `retry-after` whole seconds, rounded up. `QuotaFailure` has one
//!   violation for each limit that denied the request; the `subject` is the limit's name, percent-encoded as above.
//! - `ratelimit-policy` and `ratelimit` are in the initial metadata of calls that were allowed, and in the metadata of the status
//!   of calls that were denied.
//! - A request is one decision, also if it is a stream. It holds its slots until the trailers are sent or the client is gone,
//!   or until the database was away for longer than the lease.
//! - An [`Error`](crate::Error) and a [`Denied`](crate::Denied) convert to the same status, as a `tonic::Status`.
//! - `grpc-retry-pushback-ms` is not sent. A client with a retry policy would wait that long within the call, perhaps for hours,
//!   and then report `DEADLINE_EXCEEDED` instead of the denial.
//!
//! # Older fields and CORS
//! [`x_ratelimit_headers`](RateLimitLayer::x_ratelimit_headers) adds the older `X-RateLimit-*` fields. To let scripts of other
//! origins read the fields, put a CORS layer outside of this one, and list them in `Access-Control-Expose-Headers`; for gRPC-Web, also
//! `grpc-status`, `grpc-message` and `grpc-status-details-bin`. The guide's page on [web services](crate::guide::web#cors) has an
//! example.
//!
//! [tower]: https://docs.rs/tower

mod address;
mod answer;
mod keys;
mod layer;
mod log;
mod request_hold;
mod request_limits;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
mod axum;
#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
mod tonic;

#[cfg(feature = "axum")]
pub use self::axum::RouteKey;
pub use crate::limiter::OnFailure;
pub use address::{ClientAddress, InvalidNetworks, Networks, PeerAddress, TrustedProxies, Unreadable};
pub use answer::error_response;
pub use keys::{
    HeaderKey, KeyExtractor, KeyFn, NoKey, Or, OrShared, OrUnlimited, PathKey, StoredKeys, key_fn, stored_keys,
};
pub use layer::{RateLimitLayer, RateLimitService, ResponseBody, SentResponse};
pub use request_hold::RequestHold;
pub use request_limits::{NoRequestLimits, RequestLimits};
