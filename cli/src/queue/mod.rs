//! `queue`: what is in the rate-limited queues, and what becomes of it.

mod cancel;
mod command;
mod discard;
mod each;
mod groups;
mod jobs;
mod ls;
mod queues;
mod requeue;
mod show;
mod time;

pub(super) use command::{QueueCommand, run};
