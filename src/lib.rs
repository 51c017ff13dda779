//! Exact application-layer rate limits inside your own PostgreSQL database.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod call;
mod error;
mod limit;
mod limiter;
mod retry;
mod sql;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "embedded")]
#[cfg_attr(docsrs, doc(cfg(feature = "embedded")))]
pub mod embedded;
pub mod migrate;

pub use call::{Balances, Call, Decision, Denied, Item, LimitRef, LimitState, Outcome, Permit};
pub use error::{Error, InvalidCall, InvalidLimit, LimitsFileError};
pub use limit::{FixedWindow, Kind, Limit, LimitBuilder, Limits, SlidingWindow, TokenBucket};
pub use limiter::{Limiter, LimiterConfig};
pub use retry::RetryPolicy;
pub use sql::{InvalidSchema, RateLimits, Schema, Within};

/// The line of sqlx that this release works with: its types stand in the signatures.
pub use sqlx;
