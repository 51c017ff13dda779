//! The command `queue`: inspects the rate-limited queues, and requeues, cancels or discards jobs.

mod change;
mod command;
mod jobs;
mod queues;

pub(crate) use change::{Became, cancel, requeue};
pub(super) use command::{QueueCommand, run};
pub(crate) use queues::{Queues, no_such_job};
