//! The tool `pg-limiter`. The library of this package is for its own binary, tests and fuzz targets.

mod args;
mod bench;
mod database;
mod decide;
mod demo;
mod doctor;
mod error;
mod exec;
mod export;
mod input;
mod json;
mod key_secret;
mod limit_args;
mod limits;
mod lines;
mod live;
mod migrate;
mod output;
mod plot;
mod queue;
mod removal;
mod replay;
mod signals;
mod simulate;
mod stored;
mod text;
mod top;
mod ui;

pub use args::{command, main};
pub use replay::{Event, LogFormat, LogLine, UnreadableLine};
