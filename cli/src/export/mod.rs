//! The command `export`: writes the rows of the buckets for other programs.

mod export;
mod row;

pub(super) use export::{ExportArgs, run};
pub(crate) use row::{CLOCK, COLUMNS, Row, now};
