//! Reads a database while it is in use, for people who watch it: `ui` and `top`. It writes nothing, and reads a large table
//! only through indexes and samples. Times are in microseconds since the Unix epoch, by the database's clock.

mod bucket;
mod history;
mod keys;
mod live;
mod queues;
mod sample;
mod sampler;
mod taken;
#[cfg(test)]
pub(crate) mod tests;
mod view;

pub(crate) use bucket::{BucketView, Meaning};
pub(crate) use keys::{Balance, KeyBucket};
pub(crate) use live::{Health, Live, Seen, pause};
pub(crate) use queues::{GroupView, JobView, LISTED, QueueView, ReservedView};
pub(crate) use view::{Counted, Coverage, How, KeyView, LimitView, Snapshot};
