//! `bench` measures a server with real calls on its own rows.

mod args;
mod bench;
mod histogram;
mod interrupt;
mod load;
mod measure;
mod report;
mod setup;
mod text;
mod work;

pub(super) use args::{BENCH_EXIT_CODES, BenchArgs};
pub(super) use bench::run;
pub(crate) use interrupt::interrupt;
