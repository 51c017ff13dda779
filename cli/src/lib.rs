//! The tool `pg-limiter`. The library of this package is for its own binary, tests and fuzz targets.

mod args;
mod bench;
mod block;
mod database;
mod decide;
mod demo;
mod dispatch;
mod doctor;
mod error;
mod exec;
mod export;
mod forget;
mod hidden_keys;
mod input;
mod json;
mod key_secret;
mod length;
mod limit_args;
mod live;
mod migrate;
mod output;
mod plot;
mod progress;
mod prune;
mod queue;
mod replay;
mod reset;
mod shell;
mod signals;
mod simulate;
mod text;
mod tls;
mod top;
mod ui;

pub use dispatch::{command, main};
pub use replay::{Event, LogField, LogLine};
