//! The handle that owns a pool: its own transactions, with retry.

mod attempt;
mod held;
mod limiter;
mod work;

pub use limiter::{Limiter, LimiterConfig};
