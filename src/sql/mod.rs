//! The SQL calls on a connection: one statement, one round trip each.

mod batch;
mod decide;
mod prune;
mod schema;
mod within;

pub use schema::{InvalidSchema, Schema};
pub use within::{RateLimits, Within};

pub(crate) use within::reset_all_keys;

pub(crate) use batch::Batch;
pub(crate) use decide::{Alone, Answer, decide, decide_alone, flush};
pub(crate) use prune::{LastRow, PruneStep, prune};
pub(crate) use schema::Statements;
