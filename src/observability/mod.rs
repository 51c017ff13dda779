#![doc = include_str!("interface.md")]

mod batch;
mod count;
mod job;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub mod metric;
mod seen;

pub use count::count_shadow_denial;

pub(crate) use batch::{asking, deciding};
#[cfg(feature = "metrics")]
pub(crate) use count::queue_is;
pub(crate) use count::{batch, enqueued, pruned, retried};
pub(crate) use job::{SeenJob, handler_begins};
pub(crate) use seen::{Answered, Seen};

/// The target of all spans.
const TARGET: &str = "pg_limiter";
