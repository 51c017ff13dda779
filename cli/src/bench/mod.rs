//! `bench` measures a server with real calls on its own rows.

mod bench;
mod measure;
mod report;
mod setup;

pub(super) use bench::run;
pub(super) use setup::{BENCH_EXIT_CODES, BenchArgs};
