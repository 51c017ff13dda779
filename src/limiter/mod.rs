//! The handle that owns a pool. It runs transactions of its own, retries them, and decides calls that wait at the same
//! time together.

mod config;
mod denials;
mod limiter;
mod prune;
mod until_ready;
mod wait;
mod waiters;
mod work;

pub use config::{DenialMemory, LimiterConfig};
pub use limiter::Limiter;
pub use wait::WaitConfig;
