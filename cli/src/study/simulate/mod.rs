//! The command `simulate`: offers generated traffic to limits. The same SQL decides as in production.

mod simulate;
mod traffic;

pub(crate) use simulate::{panels_of_traffic, run};
pub(crate) use traffic::SimulateArgs;
