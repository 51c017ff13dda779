use std::fmt;
use std::time::SystemTime;

use crate::call::Hidden;
use crate::error::{Error, InvalidJob};
use crate::queue::time;
use crate::sql::queue::{JobRow, SlotItem};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// The job waits until its time.
    Scheduled,
    /// The job is due and waits its turn in its group: the limits allow no further start yet, the slots of a concurrency limit
    /// are taken, or a handler has returned [`Finish::Wait`](crate::queue::Finish::Wait).
    Available,
    /// A worker has the job.
    Running,
    /// The job is done.
    Done,
    /// The job has failed too many times, or its handler gave up. Look at its error, then requeue or delete it.
    Dead,
    /// The job was cancelled before it started.
    Cancelled,
}

/// A text that is not the name of a [`JobState`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown job state \"{name}\"; use one of {}", JobState::names())]
pub struct InvalidJobState {
    name: String,
}

impl From<InvalidJobState> for Error {
    /// [`InvalidJob::State`].
    fn from(invalid: InvalidJobState) -> Self {
        InvalidJob::State { reason: invalid.to_string() }.into()
    }
}

impl JobState {
    /// All states.
    pub const ALL: &[Self] =
        &[Self::Scheduled, Self::Available, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// The name of the state in SQL and in the `pg-limiter` tool.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Available => "available",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    fn names() -> String {
        Self::ALL.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The state of this name. A name that only a newer release knows is taken for `Scheduled`.
    pub(super) fn of(name: &str) -> Self {
        Self::ALL.iter().copied().find(|state| state.as_str() == name).unwrap_or(Self::Scheduled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for JobState {
    type Err = InvalidJobState;

    /// Parses the name that [`as_str`](Self::as_str) returns.
    fn from_str(name: &str) -> Result<Self, InvalidJobState> {
        let named = Self::ALL.iter().copied().find(|state| state.as_str() == name);
        named.ok_or_else(|| InvalidJobState { name: name.to_owned() })
    }
}

/// The tokens that a job has reserved from one limit and key, or the slots that it takes.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct JobItem {
    /// The limit's name.
    pub limit: String,
    /// The key, as stored: hashed if there is a [`KeySecret`](crate::KeySecret).
    pub key: String,
    /// The number of tokens reserved, or of slots.
    pub count: f64,
    /// The number of tokens actually used, once that is settled: see [`Queue::settle`](crate::queue::Queue::settle). `None` in a
    /// handler.
    pub used: Option<f64>,
}

impl fmt::Debug for JobItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, key, count, used } = self;
        f.debug_struct("JobItem")
            .field("limit", limit)
            .field("key", &Hidden(key))
            .field("count", count)
            .field("used", used)
            .finish()
    }
}

impl JobItem {
    pub(super) fn all(limits: Vec<String>, keys: Vec<String>, counts: &[f64], used: &[Option<f64>]) -> Vec<Self> {
        let items = limits.into_iter().zip(keys).zip(counts).enumerate();
        let item = |(nth, ((limit, key), count)): (usize, ((String, String), &f64))| Self {
            limit,
            key,
            count: *count,
            used: used.get(nth).copied().flatten(),
        };
        items.map(item).collect()
    }

    pub(super) fn slot(item: SlotItem) -> Self {
        Self { limit: item.name, key: item.key, count: item.count, used: None }
    }
}

/// A job as stored in the database. Its `{:?}` output leaves out what may be personal data: group, keys, payload, unique id
/// and last error.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job's id.
    pub id: i64,
    /// Its queue.
    pub queue: String,
    /// Its group, as stored: hashed if there is a [`KeySecret`](crate::KeySecret).
    pub group: String,
    /// Its state.
    pub state: JobState,
    /// Its priority.
    pub priority: i32,
    /// The time that it is scheduled for.
    pub run_at: SystemTime,
    /// Its payload, as JSON.
    pub payload: String,
    /// Its unique id.
    pub unique_id: Option<String>,
    /// Its reservations.
    pub items: Vec<JobItem>,
    /// The slots of concurrency limits that it takes when it starts. [`JobItem::used`] is always `None` here.
    pub slots: Vec<JobItem>,
    /// The number of failures. A worker that dies while it runs the job counts as a failure.
    pub failures: u32,
    /// The number of failures after which it is dead.
    pub max_attempts: u32,
    /// The message of its last failure.
    pub last_error: Option<String>,
    /// The name of the worker that has it.
    pub worker: Option<String>,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When it was last started.
    pub started_at: Option<SystemTime>,
    /// When it ended as done, cancelled or dead.
    pub finished_at: Option<SystemTime>,
    /// How many times its handler has returned [`Finish::Wait`](crate::queue::Finish::Wait), over all attempts.
    pub waits: u32,
    /// The time before which no job of its group starts, because a handler returned
    /// [`Finish::Wait`](crate::queue::Finish::Wait). `None` for a job that has started, and if `run_at` is not earlier.
    pub waiting_until: Option<SystemTime>,
    /// The limit because of which no worker has started the job, 10 s after its time: they do not define it, or define it as
    /// another kind. `None` for a job that has started, and once a worker that defines the limit looks for jobs.
    pub blocked_by: Option<String>,
    /// Whether the job has not reserved its tokens yet, because it waits for a turn of its group:
    /// [`QueueConfig::turns`](crate::queue::QueueConfig::turns). Its `run_at` is then the earliest time.
    pub awaits_turn: bool,
}

/// The name of the limit in a job's column of this name.
pub(super) fn blocked_by(stored: &str) -> &str {
    stored.strip_suffix("/slots").unwrap_or(stored)
}

impl fmt::Debug for JobInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobInfo")
            .field("id", &self.id)
            .field("queue", &self.queue)
            .field("group", &Hidden(&self.group))
            .field("state", &self.state)
            .field("run_at", &self.run_at)
            .field("items", &self.items)
            .field("slots", &self.slots)
            .field("failures", &self.failures)
            .field("max_attempts", &self.max_attempts)
            .field("waits", &self.waits)
            .field("waiting_until", &self.waiting_until)
            .field("blocked_by", &self.blocked_by)
            .field("awaits_turn", &self.awaits_turn)
            .finish_non_exhaustive()
    }
}

impl From<JobRow> for JobInfo {
    fn from(row: JobRow) -> Self {
        let used = row.used_counts.unwrap_or_default();
        let items = JobItem::all(row.limit_names, row.limit_keys, &row.counts, &used);
        Self {
            id: row.id,
            queue: row.queue,
            group: row.key,
            state: JobState::of(&row.state),
            priority: row.priority,
            run_at: time::from_micros(row.run_at),
            payload: row.payload,
            unique_id: row.unique_id,
            items,
            slots: row.slots.into_iter().map(JobItem::slot).collect(),
            failures: row.failures.unsigned_abs(),
            max_attempts: row.max_attempts.unsigned_abs(),
            last_error: row.last_error,
            worker: row.worker,
            enqueued_at: time::from_micros(row.enqueued_at),
            started_at: row.started_at.map(time::from_micros),
            finished_at: row.finished_at.map(time::from_micros),
            waits: row.waits.unsigned_abs(),
            waiting_until: row.waits_until.map(time::from_micros),
            blocked_by: row.blocked_by.as_deref().map(blocked_by).map(str::to_owned),
            awaits_turn: row.awaits_turn,
        }
    }
}
