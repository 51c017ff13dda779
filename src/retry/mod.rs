//! When to try again.

mod backoff;
mod policy;

pub use policy::RetryPolicy;

pub(crate) use backoff::{Attempts, longest};
