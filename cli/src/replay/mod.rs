//! The command `replay`: replays recorded calls or an access log. The same SQL decides as in production.

mod access_log;
mod apply;
mod decisions;
mod events;
mod faults;
mod leases;
mod merge;
mod parser;
mod pass;
mod pictured;
mod recording;
mod replay;
mod requests;
mod sandbox;
mod summary;
mod table;
mod tally;

pub use access_log::{LogFormat, LogLine, UnreadableLine};
pub use events::Event;

pub(super) use access_log::LogOptions;
pub(super) use apply::{CHUNK, Timed, decide_all, moment};
#[cfg(test)]
pub(super) use events::YEARS;
pub(super) use replay::{ReplayArgs, run};
pub(super) use requests::panels_of_log;
pub(super) use sandbox::Sandbox;
