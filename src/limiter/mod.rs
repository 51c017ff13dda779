//! The handle that owns a pool: its own transactions, with retry, and callers who wait together decided together.

mod attempt;
mod combine;
mod config;
mod held;
mod limiter;
mod work;

pub use config::{Connections, Durability, Isolation, LimiterConfig};
pub use limiter::Limiter;
