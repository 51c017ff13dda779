//! The command `export`: writes the rows of the buckets for other programs.

mod args;
mod export;
mod pages;
mod row;
mod writer;

pub(super) use args::ExportArgs;
pub(super) use export::run;
pub(crate) use row::{COLUMNS, Row};
