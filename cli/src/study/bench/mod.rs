//! `bench` measures a server with real calls on its own rows.

mod bench;
mod setup;

pub(crate) use bench::run;
pub(crate) use setup::{BENCH_EXIT_CODES, BenchArgs};
