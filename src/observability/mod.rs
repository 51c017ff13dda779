#![doc = include_str!("interface.md")]

mod batch;
mod call_span;
mod count;
mod job_span;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub mod metric;

pub use count::count_shadow_denial;

pub(crate) use batch::{asking, deciding};
pub(crate) use call_span::{Answered, CallSpan};
#[cfg(feature = "reqwest")]
pub(crate) use count::paused;
#[cfg(feature = "metrics")]
pub(crate) use count::queue_is;
#[cfg(feature = "tower")]
pub(crate) use count::unreadable_client;
pub(crate) use count::{batch, enqueued, limits_reloaded, lost_lease, pruned, retried};
pub(crate) use job_span::{JobSpan, attempt_failed, handler_begins};

/// The target of all spans.
const TARGET: &str = "pg_limiter";
