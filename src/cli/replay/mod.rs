//! `replay`: recorded calls, or an access log, through the same SQL that decides in production.

mod access_log;
mod apply;
mod clock;
mod events;
mod recording;
mod run;
mod sandbox;
mod table;
mod tally;

use apply::Replayed;

pub use access_log::{LogField, LogLine};
pub use events::Event;

pub(super) use run::{ReplayArgs, run};
