//! The command `replay`: replays recorded calls or an access log. The same SQL decides as in production.

mod access_log;
mod events;
mod parser;
mod pictured;
mod recording;
mod replay;
mod sandbox;
mod tally;

pub use access_log::{LogFormat, LogLine, UnreadableLine};
pub use events::Event;

pub(super) use access_log::LogOptions;
#[cfg(test)]
pub(super) use events::YEARS;
pub(super) use replay::{ReplayArgs, panels_of_log, run};
pub(super) use sandbox::{CHUNK, Sandbox, Timed, moment};
