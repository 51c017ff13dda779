//! When to retry.

mod attempts;
mod jitter;
mod policy;

pub use policy::RetryPolicy;

pub(crate) use attempts::{Attempts, longest};
pub(crate) use jitter::{clamped_fraction, part_of};
