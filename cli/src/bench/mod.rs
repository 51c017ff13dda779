//! `bench` measures a server with real calls on its own rows.

mod args;
mod bench;
mod measure;
mod report;
mod setup;

pub(super) use args::{BENCH_EXIT_CODES, BenchArgs};
pub(super) use bench::run;
