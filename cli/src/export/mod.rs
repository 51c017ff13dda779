//! The command `export`: writes the rows of the buckets for other programs.

mod args;
mod pages;
mod row;
mod run;
mod writer;

pub(super) use args::ExportArgs;
pub(super) use run::run;
