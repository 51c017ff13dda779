//! Exact application-layer rate limits inside your own PostgreSQL database. Most decisions take one round trip, for any number of
//! limits. A bucket is one row, or several if you shard it. No other service is needed.
//!
//! - **Never over-admits.** A decision is written only if its rows have not changed since they were read. Otherwise it is made
//!   again on locked rows, or fails with a conflict.
//! - **Commits with your data.** [`Limiter::within`] takes tokens in your own sqlx transaction. A call on several limits
//!   charges all of them or none.
//! - **Exact retry times.** `retry_after` is the time until the same call would be allowed, if no other call takes tokens.
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
//! // In the limiter's own transaction: charged whatever happens next.
//! let decision = limiter.limit(("per_user", "u1")).await?;
//! match decision.outcome() {
//!     Outcome::Allowed => println!("allowed; {} left", decision.remaining()),
//!     Outcome::Denied { retry_after } => println!("denied; retry in {retry_after:?}"),
//!     _ => println!("denied"), // Treat an unknown outcome as a denial.
//! }
//! # Ok(()) }
//! ```
//!
//! The [`guide`] has an index by task, and a [glossary](guide::glossary).
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
//! The README has a table of the features. Only `toml` is on by default.
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
    Balances, Call, CallAt, Decision, Denied, Headroom, InvalidKeySecret, Item, Key, KeySecret, LeaseId, LimitRef,
    LimitState, Op, Outcome, Permit,
};
pub use error::{Engine, Error, InvalidCall, InvalidJob, InvalidLimit, LimitsFileError};
pub use limit::{Calendar, InvalidLength, Kind, Length, Limit, LimitBuilder, LimitWarning, Limits, Tokens, kinds};
pub use limiter::{
    Acquired, Allowance, DenialMemory, Lease, Limiter, LimiterConfig, LimitsFile, LimitsWatch, WaitConfig,
};
pub use retry::RetryPolicy;
pub use sql::{Forgotten, InvalidSchema, Schema, TransactionLimiter, Within};
pub use transact::{Connections, Durability, Isolation};

/// The version of sqlx that this release works with. Its types appear in public signatures.
pub use sqlx;

/// Compiles the examples of the README.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
