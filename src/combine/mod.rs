//! Calls of one process that wait at the same time are decided together, as a batch: one statement, one commit.
//!
//! Each lane has a queue and, while calls wait in it, a driver: a task that takes the waiting calls, sends them as one
//! batch, and answers them. While one batch commits, the next one gathers; no call waits for a timer. A key belongs to
//! one lane. If a call names keys of several lanes, it waits until no other lane's batch has one of its keys. Calls on
//! a row that another transaction keeps locked wait beside their lane.

mod beside;
mod combiner;
mod connection;
mod driver;
mod in_flight;
mod lane;
mod lent;
mod short;

pub(crate) use combiner::Combiner;
pub(crate) use connection::lock_timeout;
pub(crate) use driver::{Apart, Batched, Lanes, Route, submit};
pub(crate) use lane::Waiting;
