//! The tool `pg-limiter` (crate feature `cli`). It is not part of the library's interface.

mod args;
mod bench;
mod columns;
mod database;
mod decide;
mod demo;
mod doctor;
mod error;
mod export;
mod input;
mod json;
mod key_secret;
mod limit_args;
mod limit_text;
mod migrate;
mod output;
mod plot;
mod prune;
mod queue;
mod replay;
mod reset;
mod run;
mod simulate;
mod text;
mod tls;

pub use replay::{Event, LogField, LogLine};
pub use run::main;
