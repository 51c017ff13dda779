//! `bench`: what this server carries, measured with real calls on rows of its own.

mod args;
mod histogram;
mod interrupt;
mod load;
mod measure;
mod report;
mod run;
mod site;
mod text;
mod work;

pub(super) use args::BenchArgs;
pub(super) use run::run;
