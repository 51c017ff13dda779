//! Calls of this process that wait at the same time are decided together: one statement, one commit.
//!
//! Each lane has a queue and, while there is something in it, a driver: a task that takes what waits, has it decided, and
//! answers. While one batch commits, the next one gathers; no call waits for a timer. A key belongs to one lane; where groups
//! ask keys of several lanes, a call waits until no other lane's batch has one of its keys. Calls on a row that another
//! transaction has locked for long wait beside their lane.

mod beside;
mod combiner;
mod driver;
mod in_flight;
mod lane;
mod link;
mod short;

pub(crate) use combiner::Combiner;
pub(crate) use driver::{Batched, Lanes, Place, drive};
pub(crate) use lane::{Refused, Waiting};
