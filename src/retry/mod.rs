//! When to retry.

mod backoff;
mod jitter;
mod policy;

pub use policy::RetryPolicy;

pub(crate) use backoff::{Attempts, longest};
pub(crate) use jitter::{clamped_fraction, part_of};
