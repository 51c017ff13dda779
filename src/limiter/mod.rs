//! The handle that owns a pool: its own transactions, with retry.

mod attempt;
#[allow(clippy::module_inception)]
mod limiter;
mod work;

pub use limiter::{Limiter, LimiterConfig};
