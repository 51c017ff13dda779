use std::fmt;
use std::time::{Duration, SystemTime};

use crate::call::Hidden;
use crate::queue::time;
use crate::sql::queue::GroupRow;

/// The jobs of one group of a queue.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupCounts {
    /// The queue.
    pub queue: String,
    /// The group, as it is stored: see [`KeySecret`](crate::KeySecret).
    pub group: String,
    /// Jobs that wait for their time.
    pub scheduled: u64,
    /// Jobs that are due and stand in line.
    pub available: u64,
    /// Jobs that a worker has.
    pub running: u64,
    /// Jobs that are done, and were not pruned.
    pub done: u64,
    /// Jobs that failed too often.
    pub dead: u64,
    /// Jobs that were cancelled, and were not pruned.
    pub cancelled: u64,
    /// How long ago the oldest job that waits was enqueued.
    pub oldest: Option<Duration>,
    /// For how long the first job that waits is due: more than moments if there are too few workers, or none.
    pub overdue: Option<Duration>,
    /// Until when no job of the group starts, because a handler returned [`Finish::Wait`](crate::queue::Finish::Wait).
    pub waiting_until: Option<SystemTime>,
}

impl fmt::Debug for GroupCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupCounts")
            .field("queue", &self.queue)
            .field("group", &Hidden(&self.group))
            .field("scheduled", &self.scheduled)
            .field("available", &self.available)
            .field("running", &self.running)
            .field("done", &self.done)
            .field("dead", &self.dead)
            .field("cancelled", &self.cancelled)
            .field("oldest", &self.oldest)
            .field("overdue", &self.overdue)
            .field("waiting_until", &self.waiting_until)
            .finish()
    }
}

impl From<GroupRow> for GroupCounts {
    fn from(row: GroupRow) -> Self {
        let [scheduled, available, running, done, dead, cancelled] = row.counts.map(i64::unsigned_abs);
        let since = |at: Option<i64>| at.map(|at| time::wait(Some(row.clock.saturating_sub(at))));
        Self {
            scheduled,
            available,
            running,
            done,
            dead,
            cancelled,
            oldest: since(row.oldest),
            overdue: since(row.next_at.filter(|at| *at <= row.clock)),
            waiting_until: row.waits_until.map(time::from_micros),
            queue: row.queue,
            group: row.key,
        }
    }
}
