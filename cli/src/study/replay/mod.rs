//! The command `replay`: replays recorded calls or an access log. The same SQL decides as in production.

mod access_log;
mod events;
mod recording;
mod replay;
mod sandbox;
mod tally;

pub use access_log::{LogFormat, LogLine};
pub use events::Event;

pub(crate) use access_log::LogOptions;
#[cfg(test)]
pub(crate) use events::YEARS;
pub(crate) use replay::{ReplayArgs, panels_of_log, run};
pub(crate) use sandbox::{CHUNK, Sandbox, Timed};
