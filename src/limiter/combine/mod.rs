//! Calls of this process that wait at the same time are decided together: one statement, one commit.
//!
//! Each lane has a queue and, while there is something in it, a driver: a task that takes what waits, has it decided, and
//! answers. While one batch commits the next one gathers by itself; nobody waits for a timer.

mod combiner;
mod driver;
mod lane;
mod link;

pub(super) use combiner::Combiner;

pub(crate) use lane::{Lane, Refused, Waiting};
