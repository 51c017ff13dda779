//! The command `simulate`: offers generated traffic to limits. The same SQL decides as in production.

mod args;
mod outcome;
mod simulate;
mod traffic;

pub(super) use args::SimulateArgs;
pub(super) use simulate::{panels_of_traffic, run};
