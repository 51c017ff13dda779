use std::fmt;
use std::time::SystemTime;

use crate::call::Hidden;
use crate::queue::time;
use crate::sql::queue::JobRow;

/// Where a job is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It waits for its time.
    Scheduled,
    /// It is due, and stands in the line of its group: its limits let no more start yet.
    Available,
    /// A worker has it.
    Running,
    /// It is done.
    Done,
    /// It failed as often as it may: look at its error, and requeue it.
    Dead,
    /// It was cancelled before it started.
    Cancelled,
}

impl JobState {
    /// All states.
    pub const ALL: &[Self] =
        &[Self::Scheduled, Self::Available, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// The name used in SQL and by the tool.
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

    /// The reverse; a newer release may know others, which are taken for scheduled.
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
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|state| state.as_str() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|state| state.as_str()).collect();
            format!("there is no state \"{name}\", but {}", names.join(", "))
        })
    }
}

/// What a job reserved from one limit.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct JobItem {
    /// The limit's name.
    pub limit: String,
    /// The key, as it is stored: see [`KeySecret`](crate::KeySecret).
    pub key: String,
    /// The tokens reserved.
    pub count: f64,
    /// The tokens really used, once that was settled; `None` in a handler.
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
}

/// A job as it is in the database. `{:?}` leaves out what may tell who somebody is: its group and keys, its payload, its
/// unique id and what its failure said.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job's id.
    pub id: i64,
    /// Its queue.
    pub queue: String,
    /// Its group, as it is stored: see [`KeySecret`](crate::KeySecret).
    pub group: String,
    /// Where it is on its way.
    pub state: JobState,
    /// Its priority.
    pub priority: i32,
    /// The time that it was reserved for.
    pub run_at: SystemTime,
    /// Its payload, as JSON.
    pub payload: String,
    /// Its unique id.
    pub unique_id: Option<String>,
    /// What it reserved.
    pub items: Vec<JobItem>,
    /// How often it failed, or was left by a worker that died.
    pub failures: u32,
    /// At how many failures it is dead.
    pub max_attempts: u32,
    /// What its last failure said.
    pub last_error: Option<String>,
    /// The worker that has it.
    pub worker: Option<String>,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// When it was last started.
    pub started_at: Option<SystemTime>,
    /// When it was done, cancelled, or dead.
    pub finished_at: Option<SystemTime>,
    /// How often its handler has returned [`Finish::Wait`](crate::queue::Finish::Wait).
    pub waits: u32,
    /// Until when no job of its group starts, because a handler returned [`Finish::Wait`](crate::queue::Finish::Wait). `None`
    /// for a job that has started, and for a job with a later time of its own.
    pub waiting_until: Option<SystemTime>,
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
            .field("failures", &self.failures)
            .field("max_attempts", &self.max_attempts)
            .field("waits", &self.waits)
            .field("waiting_until", &self.waiting_until)
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
            failures: row.failures.unsigned_abs(),
            max_attempts: row.max_attempts.unsigned_abs(),
            last_error: row.last_error,
            worker: row.worker,
            enqueued_at: time::from_micros(row.enqueued_at),
            started_at: row.started_at.map(time::from_micros),
            finished_at: row.finished_at.map(time::from_micros),
            waits: row.waits.unsigned_abs(),
            waiting_until: row.waits_until.map(time::from_micros),
        }
    }
}
