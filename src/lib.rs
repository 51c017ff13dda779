//! Rate limits in the PostgreSQL database that your application already has. There, a message can be counted against its author's
//! limit in the transaction that stores it: both are committed, or neither is. All processes share one exact count, and you run no
//! second service.
//!
//! ```no_run
//! use std::time::Duration;
//! use pg_limiter::{Item, Limit, Limiter, Limits, Outcome};
//!
//! # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! pg_limiter::migrate::migrate(&pool).await?;
//! let minute = Duration::from_secs(60);
//! let limits = Limits::new()
//!     .define("per_user", Limit::token_bucket(10, minute).capacity(20))?
//!     .define("per_org", Limit::sliding_window(1000, minute))?;
//! let limiter = Limiter::new(pool.clone(), limits);
//!
//! // In your transaction: the message and its token commit or roll back together.
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO messages (author) VALUES ('u1')").execute(&mut *tx).await?;
//! limiter.within(&mut tx).limit([Item::new("per_user", "u1"), Item::new("per_org", "o7")]).await?.enforce()?;
//! tx.commit().await?;
//!
//! // In the limiter's own transaction: the token stays spent, whatever happens next.
//! let decision = limiter.limit(("per_user", "u1")).await?;
//! match decision.outcome() {
//!     Outcome::Allowed => println!("allowed; {} left", decision.remaining()),
//!     Outcome::Denied { retry_after } => println!("denied; retry in {retry_after:?}"),
//!     _ => println!("denied"), // Treat an unknown outcome as a denial.
//! }
//! # Ok(()) }
//! ```
//!
//! A limit grants *tokens*, such as 10 per minute, separately for each *key*, such as a user. The tokens of a limit and a key are in a
//! *bucket*. A call takes tokens from one or more buckets: from all of them, or from none.
//!
//! - **It never over-admits.** A decision is written only if its rows have not changed since they were read. Otherwise it is made
//!   again on locked rows, or fails with a conflict.
//! - **It commits with your data.** [`Limiter::within`] takes tokens in your own sqlx transaction.
//! - **Retry times are exact.** `retry_after` is the time until the same call would be allowed, if no other call takes tokens.
//! - **It is one round trip** for most decisions, for any number of limits. A bucket is one row, or several if you shard it.
//!
//! The [`guide`] has an index by task, the [guarantees](guide#guarantees) in full, and a [glossary](guide::glossary).
//!
//! # Overview
//! - Values, without I/O: [`Limit`], [`Limits`], [`Item`], [`Call`], [`Decision`], [`Error`].
//! - Calls on a connection that you own: [`TransactionLimiter`], [`Within`].
//! - The handle that owns a pool: [`Limiter`], its [`RetryPolicy`], and units of work ([`Limiter::transaction`]).
//! - Tokens for hot paths, taken many at once and spent from memory: [`Allowance`].
//! - A job queue that reserves tokens when a job is enqueued and runs the job later: [`queue`].
//! - Limits for HTTP, as a tower layer and in handlers: `web` (features `tower`, `axum` and `tonic`).
//! - Limits for requests to third parties, as a middleware for reqwest: `outgoing` (feature `reqwest`).
//! - Spans, and metrics with the feature `metrics`: [`observability`].
//! - The tables and functions in your database: [`migrate`].
//! - A private PostgreSQL for tests: `embedded` (feature `embedded`).
//! - A clock that tests advance: `testing` (feature `testing`).
//!
//! # Units and defaults
//! Tokens are `f64`. Fractions are allowed, and comparisons tolerate an error of 1e-9. Times are [`std::time::Duration`] in
//! whole microseconds. The clock is the database's, read again after a long wait for a row. The default count is 1, and the
//! default capacity is the rate. A bucket without a row is full.
//!
//! # Features
//! | feature | default | |
//! |---|---|---|
//! | `toml` | yes | reads limits from a TOML file: `Limits::from_toml` |
//! | `tower` | no | a layer for HTTP services: `pg_limiter::web` |
//! | `axum` | no | `tower`, with the peer addresses, routes and responses of axum |
//! | `tonic` | no | `tower`, with [gRPC](guide::web#grpc) responses |
//! | `reqwest` | no | a middleware for requests to third parties: [`pg_limiter::outgoing`](guide::outgoing) |
//! | `metrics` | no | counters, histograms and gauges: [`observability`] |
//! | `embedded` | no | a private PostgreSQL for [tests](guide::testing) |
//! | `containers` | no | lets `embedded` use a container |
//! | `testing` | no | a clock that [tests](guide::testing) advance: `pg_limiter::testing::TestClock` |
//! | `rustls` | no | turns on TLS in sqlx, for the [tool](guide::tool) |
//!
//! The library turns on no TLS: choose it in your own sqlx dependency. The tool `pg-limiter` is a package of its own:
//! `cargo install pg-limiter-cli --features rustls`.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod clock;
mod combine;
mod error;
mod limit;
mod limiter;
mod retry;
mod sql;
mod transact;

#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub mod embedded;
pub mod guide;
pub mod migrate;
pub mod observability;
#[cfg(feature = "reqwest")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
pub mod outgoing;
pub mod queue;
#[cfg(feature = "testing")]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub mod web;

pub use call::{
    Balances, Call, CallAt, Decision, Forgotten, Headroom, InvalidKeySecret, Item, Key, KeySecret, LeaseId, LimitRef,
    LimitState, Op, Outcome, Permit,
};
pub use error::{Denied, Engine, Error, InvalidCall, InvalidJob, InvalidLimit, LimitsFileError};
pub use limit::{Calendar, InvalidLength, Kind, Length, Limit, LimitBuilder, LimitWarning, Limits, Tokens, kinds};
pub use limiter::{
    Acquired, Allowance, DenialMemory, Lease, Limiter, LimiterConfig, LimitsFile, LimitsWatch, WaitConfig,
};
pub use retry::RetryPolicy;
pub use sql::{InvalidSchema, Schema, TransactionLimiter, Within};
pub use transact::{Connections, Durability, Isolation};

/// The version of sqlx that this release works with. Its types appear in public signatures.
pub use sqlx;

/// Compiles the examples of the README.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
