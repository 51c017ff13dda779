//! The SQL calls of the queue: one statement, one round trip each.

mod claim;
mod enqueue;
mod jobs;
mod known_limits;
mod look;
mod statements;

pub(crate) use claim::{Claim, Claimed, ClaimedJob, claim, read};
pub(crate) use enqueue::{EnqueueAnswer, JobArrays, enqueue};
pub(crate) use jobs::{Again, again, cancel, done, extend, lapsed, prune, requeue, settle};
pub(crate) use known_limits::KnownLimits;
#[cfg(feature = "cli")]
pub(crate) use look::dead_ids;
pub(crate) use look::{GroupRow, JobFilter, JobRow, group_rows, job_rows};
pub(crate) use statements::QueueStatements;
