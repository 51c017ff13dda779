//! Exact application-layer rate limits inside your own PostgreSQL database: one statement a decision, however many
//! limits; two numbers a bucket; no other service.
//!
//! - **Never over-admits.** A decision locks its rows before it reads them, or fails as a conflict and is made again.
//! - **Commits with your data.** [`Limiter::within`] takes a limit in your own sqlx transaction; several limits are
//!   charged together or not at all.
//! - **Tells when to come back.** `retry_after` is exact.
//!
//! ```no_run
//! use std::time::Duration;
//! use pg_limiter::{Item, Limit, Limiter, Limits};
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
//! // On its own: charged whatever happens next.
//! let decision = limiter.limit(("per_user", "u1")).await?;
//! # let _ = decision;
//! # Ok(()) }
//! ```
//!
//! The [`guide`] tells the rest: the kinds of limits, transactions, failures, performance, poolers, the tool.
//!
//! # Where things are
//! - Values, without I/O: [`Limit`], [`Limits`], [`Item`], [`Call`], [`Decision`], [`Error`].
//! - Calls on a connection that you own: [`RateLimits`], [`Within`].
//! - The handle that owns a pool: [`Limiter`], its [`RetryPolicy`], and units of work ([`Limiter::transaction`]).
//! - Reserve now, run later: [`queue`].
//! - Limits for HTTP, as a layer of tower and in handlers: `web` (features `tower` and `axum`).
//! - Spans and metrics: [`observability`].
//! - The tables and functions in your database: [`migrate`].
//!
//! # Units and defaults
//! Tokens are `f64`; fractions are allowed, and comparisons forgive 1e-9. Times are [`std::time::Duration`] in whole
//! microseconds. The clock is the database's, read after the row is locked. A count is 1 unless given; a capacity is the
//! rate unless given. A bucket without a row is full.
//!
//! # Features
//! `toml` (default): [`Limits::from_toml`]. `embedded`: a private PostgreSQL for tests. `containers`: that one may be a
//! container. `metrics`: counters and histograms ([`observability`]). `cli`: the tool. `rustls`: TLS for the tool, which is
//! installed with `cargo install pg-limiter --features cli,rustls`. `tower`: limits for HTTP services.
//! `axum`: the same with what axum knows and answers.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod error;
mod limit;
mod limiter;
mod retry;
mod sql;

#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub mod embedded;
pub mod guide;
pub mod migrate;
pub mod observability;
pub mod queue;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub mod web;

pub use call::{
    Balances, Call, CallAt, Decision, Denied, InvalidKeySecret, Item, Key, KeySecret, LimitRef, LimitState, Op,
    Outcome, Permit,
};
pub use error::{Engine, Error, InvalidCall, InvalidJob, InvalidLimit, LimitsFileError};
pub use limit::{InvalidLength, Kind, Length, Limit, LimitBuilder, LimitWarning, Limits, Tokens, kinds};
pub use limiter::{Connections, DenialMemory, Durability, Isolation, Limiter, LimiterConfig, WaitConfig};
pub use retry::RetryPolicy;
pub use sql::{InvalidSchema, RateLimits, Schema, Within};

/// The line of sqlx that this release works with: its types stand in the signatures.
pub use sqlx;

/// The examples of the README are compiled.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
