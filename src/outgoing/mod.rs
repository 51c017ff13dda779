//! Rate limits for requests to third parties: a middleware for [reqwest]. Requires the feature `reqwest`.
//!
//! Before it sends a request, the middleware waits for the request's tokens. If the third party responds with 429, it blocks a
//! [gate](crate::Limit::gate) for as long as the response demands, so that the requests of all processes wait. Then it retries.
//!
//! ```no_run
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use pg_limiter::outgoing::OutgoingLimits;
//! use pg_limiter::{Limit, Limiter, Limits};
//! use reqwest_middleware::ClientBuilder;
//!
//! let limits = Limits::new()
//!     .define("mail_api", Limit::token_bucket(10, Duration::from_secs(1)))?
//!     .define("mail_api_pause", Limit::gate())?;
//! let outgoing = OutgoingLimits::new(Limiter::new(pool, limits))
//!     .limit(("mail_api", ""))?
//!     .gate(("mail_api_pause", ""))?;
//! let client = ClientBuilder::new(reqwest::Client::new()).with(outgoing).build();
//! let response = client.post("https://mail.example.com/send").body("hello").send().await?;
//! # Ok(()) }
//! ```
//!
//! # How a request is sent
//! 1. The middleware calls [`Limiter::until_ready`](crate::Limiter::until_ready) with the gate and all limits of the request. So it
//!    waits until the gate is open and the tokens are available, and takes the tokens of all limits or of none.
//! 2. It sends the request.
//! 3. It reads how long the response asks clients to pause (see below), and blocks the gate for that time.
//! 4. If the third party refused the request, the middleware begins again, with new tokens. Otherwise it returns the response.
//!
//! All waits of a request together last at most [`max_wait`](OutgoingLimits::max_wait). The time in which the third party
//! responds is included; the time in which the database answers is not. If the database is away, this is up to the deadline of the
//! retry policy (5 seconds unless you set it): before the request with [`OnFailure::Open`], and before a response that demands
//! a pause is returned. A timeout of reqwest for a request begins when the request is sent.
//!
//! # Pauses
//! The first of these that a response has is used:
//!
//! | | |
//! |---|---|
//! | [`pause_for`](OutgoingLimits::pause_for) | the result of your closure |
//! | `Retry-After` of a 429, a 503 or a status of [`refuses_with`](OutgoingLimits::refuses_with) | seconds, or a date. A date counts from the `Date` of the response, or from this machine's clock if there is none. |
//! | `RateLimit` | `t` of a member with `r=0`, of [draft-ietf-httpapi-ratelimit-headers](https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/) (version 8 and later); `reset` with `remaining=0`, of version 7. A member with a partition key (`pk`) counts in a refusal, and otherwise with [`gate_by_partition`](OutgoingLimits::gate_by_partition) only. |
//! | `RateLimit-Remaining: 0` and `RateLimit-Reset` | seconds, of older versions |
//! | `X-RateLimit-Remaining: 0` and `X-RateLimit-Reset` | with [`x_ratelimit`](OutgoingLimits::x_ratelimit): seconds, or a time since 1970 |
//! | a 429 | [`default_pause`](OutgoingLimits::default_pause) |
//!
//! - **Numbers** may have a fraction. Times are rounded up to whole seconds.
//! - **Several values** of a field, in one line or in more: the longest counts. A value that is not valid is ignored, with an event of
//!   level WARN.
//! - **Zero, and a time in the past**, mean [`min_pause`](OutgoingLimits::min_pause), 1 s by default: otherwise a wrong clock would
//!   make clients retry without a pause.
//! - **A longer pause than [`max_pause`](OutgoingLimits::max_pause)** is cut, with an event of level WARN.
//!
//! A response of any status can pause: a 200 with `RateLimit: "default";r=0;t=30` says that the next request would be refused. The
//! fields `X-RateLimit-*` are not read by default, because services disagree on their meaning.
//!
//! **What a pause does not stop.** A request that was decided before the gate was blocked is still sent. A request that waits
//! for its tokens, in any process, checks the gate again before it is sent. When the pause ends, the requests that waited are
//! released as fast as their limits allow. So add a token bucket: with a gate alone, all of them go ahead at once.
//!
//! # Retries
//! A request is retried only if the response says that it was *refused* because of a limit: by the status 429, by a 503 with
//! `Retry-After` (or a time of `pause_for`), or by a status of [`refuses_with`](OutgoingLimits::refuses_with) with a time. A 500 or 422
//! never does, whatever its fields: they describe the quota, and not why the request failed.
//!
//! A refused request is retried at most [`max_retries`](OutgoingLimits::max_retries) times, if all of this holds:
//! - The request has a [gate](OutgoingLimits::gate).
//! - The request may be repeated. After a 429 or 403 it was not processed, so every method may. After a 503 it may have been, so the
//!   method must be idempotent. [`repeat_if`](OutgoingLimits::repeat_if) changes both.
//! - The body of the request is not a stream: [`try_clone`](::reqwest::Request::try_clone) can copy it.
//! - Some of the wait is left, and the pause ends within it.
//! - The gate could be blocked.
//! - The limits allow the retry within the wait.
//!
//! If one of these does not hold, the caller gets the response of the third party.
//!
//! # Errors
//! If a request is not sent, the error is
//! [`reqwest_middleware::Error::Middleware`] with an [`Error`](crate::Error):
//!
//! ```no_run
//! # async fn f(client: reqwest_middleware::ClientWithMiddleware) {
//! match client.get("https://api.example.com/").send().await {
//!     Ok(response) => println!("{}", response.status()),
//!     Err(reqwest_middleware::Error::Middleware(error)) => match error.downcast_ref::<pg_limiter::Error>() {
//!         Some(pg_limiter::Error::Denied(denied)) => println!("not sent; possible in {:?}", denied.retry_after),
//!         Some(error) => println!("not sent: no decision, {error}"),
//!         None => println!("another middleware failed: {error}"),
//!     },
//!     Err(error) => println!("sent or not: {error}"),
//! }
//! # }
//! ```
//!
//! - [`Error::Denied`](crate::Error::Denied): the tokens or the end of the pause are further away than the wait allows. It has the names
//!   of the limits, and the time to wait.
//! - [`Error::Invalid`](crate::Error::Invalid): the limits are set up wrongly, or the request costs more than a limit ever grants.
//! - All others: the database made no decision. With [`OnFailure::Open`] the request is sent instead.
//!
//! # Cancel safety
//! Dropping the future of a request is safe. Tokens that were taken stay spent. If it is dropped after the response has arrived and
//! before the gate is blocked, the pause may be lost.
//!
//! # In a transaction
//! The middleware decides in the limiter's own transactions. It has no form for the caller's: a transaction would keep its row locks
//! and its connection while the third party responds. The guide's page on [requests to third parties](crate::guide::outgoing) describes
//! what to do instead.

mod log;
mod middleware;
mod outgoing_limits;
mod pause;

pub use crate::limiter::OnFailure;
pub use outgoing_limits::OutgoingLimits;

/// The versions that this release works with. Their types appear in public signatures.
pub use {::reqwest, ::reqwest_middleware};
