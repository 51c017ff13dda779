//! The SQL calls of the queue. Each is one statement in one round trip.

mod claim;
mod enqueue;
mod jobs;
mod known_limits;
mod look;
mod statements;

pub(crate) use claim::{Claim, Claimed, ClaimedJob, SlotItem, claim, read};
pub(crate) use enqueue::{EnqueueAnswer, JobArrays, enqueue};
pub(crate) use jobs::{
    Again, WalkedTo, again, cancel, discard, done, drain, extend, lapsed, pause, prune, prune_dead, requeue,
    requeue_dead, resume, retime, settle,
};
pub(crate) use known_limits::KnownLimits;
#[cfg(feature = "metrics")]
pub(crate) use look::gauges;
pub(crate) use look::{GroupRow, JobFilter, JobRow, group_rows, job_rows};
pub(crate) use statements::QueueStatements;
