use std::fmt;
use std::time::{Duration, SystemTime};

use crate::call::Hidden;
use crate::queue::time;
use crate::sql::queue::GroupRow;

/// The number of jobs of one group of a queue, by state. Its `{:?}` output leaves out the group, which may be personal data.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupCounts {
    /// The name of the queue.
    pub queue: String,
    /// The group, as stored: hashed if there is a [`KeySecret`](crate::KeySecret).
    pub group: String,
    /// Jobs that wait until their time.
    pub scheduled: u64,
    /// Jobs that are due and wait their turn: see [`JobState::Available`](crate::queue::JobState::Available).
    pub available: u64,
    /// Jobs that a worker has.
    pub running: u64,
    /// Jobs that are done and not pruned yet.
    pub done: u64,
    /// Jobs that are dead: they failed too many times, or their handler gave up.
    pub dead: u64,
    /// Jobs that were cancelled and not pruned yet.
    pub cancelled: u64,
    /// The time since the oldest waiting job was enqueued; `None` if no job waits.
    pub oldest: Option<Duration>,
    /// The time since the first waiting job was due; `None` if no job is due. If it is more than a moment, there are too few
    /// workers, or none, or the group waits for its limits or for a third party.
    pub overdue: Option<Duration>,
    /// The time before which no job of the group starts, because a handler returned
    /// [`Finish::Wait`](crate::queue::Finish::Wait).
    pub waiting_until: Option<SystemTime>,
    /// Jobs among the scheduled ones that no worker can start: see [`JobInfo::blocked_by`](crate::queue::JobInfo::blocked_by).
    pub blocked: u64,
    /// Whether the group or its whole queue is paused: see [`Queue::pause`](crate::queue::Queue::pause).
    pub is_paused: bool,
    /// Whether its queue is [draining](crate::queue::Queue::drain).
    pub is_draining: bool,
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
            .field("blocked", &self.blocked)
            .field("is_paused", &self.is_paused)
            .field("is_draining", &self.is_draining)
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
            blocked: row.blocked.unsigned_abs(),
            is_paused: row.is_paused,
            is_draining: row.is_draining,
            queue: row.queue,
            group: row.key,
        }
    }
}
