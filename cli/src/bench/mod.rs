//! `bench`: what this server carries, measured with real calls on rows of its own; and `--soak`, whether all stays well.

mod args;
mod histogram;
mod interrupt;
mod load;
mod measure;
mod report;
mod run;
mod site;
mod soak;
mod text;
mod work;

pub(super) use args::{BENCH_EXIT_CODES, BenchArgs};
pub(super) use run::run;
