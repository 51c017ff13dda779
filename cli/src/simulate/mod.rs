//! `simulate`: what limits admit of made-up traffic, decided by the same SQL that decides in production.

mod args;
mod json;
mod outcome;
mod play;
mod run;
mod table;
mod traffic;

pub(super) use args::SimulateArgs;
pub(super) use run::run;
