//! The handle that owns a pool. It runs transactions of its own, retries them, and decides calls that wait at the same
//! time together.

mod attempt;
mod combine;
mod config;
mod denial_memory;
mod denials;
mod limiter;
mod pooled;
mod prune;
mod session;
mod until_ready;
mod wait;
mod waiters;
mod work;

pub use config::{Connections, Durability, Isolation, LimiterConfig};
pub use denial_memory::DenialMemory;
pub use limiter::Limiter;
pub use wait::WaitConfig;

pub(crate) use attempt::{Bounds, Failure, LookForHeld, Statement, over_pool};
pub(crate) use combine::{Batched, Combiner, Lanes, Place, Refused, Waiting, drive};
pub(crate) use pooled::PooledConnection;
pub(crate) use session::open as open_session;
