//! The command `queue`: inspects the rate-limited queues, and requeues, cancels or discards jobs.

mod cancel;
mod command;
mod discard;
mod each;
mod groups;
mod jobs;
mod ls;
mod queues;
mod requeue;
mod resume;
mod show;
mod time;

pub(crate) use cancel::cancel;
pub(super) use command::{QueueCommand, run};
pub(crate) use each::Became;
pub(crate) use queues::{Queues, no_such_job};
pub(crate) use requeue::requeue;
