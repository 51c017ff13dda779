//! The handle that owns a pool: its own transactions, with retry.

mod attempt;
mod limiter;
mod work;

pub use limiter::{Limiter, LimiterConfig};
