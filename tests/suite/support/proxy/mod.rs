//! A proxy in front of the test's server that injects faults into the conversation.

mod fault;
mod frames;
mod proxy;
mod session;

pub use fault::{Chaos, Fault, Point, Way, xorshift};
pub use proxy::Proxy;
