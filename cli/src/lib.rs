//! The tool `pg-limiter`. The library of this package is for its own binary, tests and fuzz targets.

// Each half uses its part of what both share.
#![cfg_attr(not(all(feature = "operate", feature = "study")), allow(dead_code, unused_imports))]

mod args;
mod balance_line;
mod database;
mod error;
mod input;
mod json;
mod key_secret;
mod limit_args;
#[cfg(feature = "operate")]
mod operate;
mod output;
mod signals;
#[cfg(feature = "study")]
mod study;
mod text;

pub use args::{command, main};
use database::{Database, Running};
use error::{CliError, Result};
use key_secret::{KeySecretArgs, Keys};
use output::Progress;
#[cfg(feature = "study")]
pub use study::bad_lines::UnreadableLine;
#[cfg(feature = "study")]
pub use study::replay::{Event, LogFormat, LogLine};

/// For a long transaction: turns off the time-outs, which are meant for the application. Not every version has all of them.
const NO_TIMEOUTS: &str = "SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings \
    WHERE name IN ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')";
