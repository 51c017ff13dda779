//! The handle that owns a pool. It runs transactions of its own, retries them, and decides calls that wait at the same
//! time together.

mod allowance;
mod config;
mod denials;
mod gate;
mod lease;
mod limiter;
mod limits_file;
#[cfg(any(feature = "reqwest", feature = "tower"))]
mod on_failure;
mod prune;
mod unit_of_work;
mod until_ready;
mod wait;
mod waiters;

pub use allowance::Allowance;
pub use config::{DenialMemory, LimiterConfig};
pub use lease::{Acquired, Lease};
pub use limiter::Limiter;
pub use limits_file::{LimitsFile, LimitsWatch};
#[cfg(any(feature = "reqwest", feature = "tower"))]
pub use on_failure::OnFailure;
pub use wait::WaitConfig;
