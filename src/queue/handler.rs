use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use sqlx::PgConnection;

use crate::call::Hidden;
use crate::queue::{JobItem, time};
use crate::sql::queue::ClaimedJob;

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// It is done: the transaction commits.
    Done,
    /// The third party said to wait (429 with Retry-After). The transaction is rolled back, nothing of the group starts before
    /// that time has passed, and this job is the first one then. It does not count as a failure, so that
    /// [`RunningJob::attempt`] stays as it is; [`RunningJob::waits`] counts it. After
    /// [`WorkerConfig::max_waits`](crate::queue::WorkerConfig::max_waits) of them each one counts as a failure, too. Jobs that
    /// have started already are not stopped, nor those that other workers hold ready for the next milliseconds.
    Wait(Duration),
    /// It cannot be done, now or later: the transaction is rolled back and the job is dead, for this reason.
    GiveUp(String),
}

/// A job that a worker has started. `{:?}` leaves out what may tell who somebody is, as for
/// [`JobInfo`](crate::queue::JobInfo).
#[derive(Clone)]
#[non_exhaustive]
pub struct RunningJob {
    /// The job's id.
    pub id: i64,
    /// Its group, as it is stored: see [`KeySecret`](crate::KeySecret).
    pub group: String,
    /// Its unique id.
    pub unique_id: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// The time that it was reserved for.
    pub run_at: SystemTime,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// Which attempt this is, from 1 on: the number of failures, and 1. An attempt that ended in [`Finish::Wait`] is made
    /// again under the same number.
    pub attempt: u32,
    /// How often its handler has returned [`Finish::Wait`].
    pub waits: u32,
    /// At how many failures it is dead.
    pub max_attempts: u32,
    /// What it reserved, and what was settled of it.
    pub items: Vec<JobItem>,
    payload: String,
}

impl fmt::Debug for RunningJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningJob")
            .field("id", &self.id)
            .field("group", &Hidden(&self.group))
            .field("run_at", &self.run_at)
            .field("attempt", &self.attempt)
            .field("waits", &self.waits)
            .field("max_attempts", &self.max_attempts)
            .field("items", &self.items)
            .finish_non_exhaustive()
    }
}

impl RunningJob {
    pub(super) fn new(job: &ClaimedJob) -> Self {
        Self {
            id: job.id,
            group: job.key.clone(),
            unique_id: job.unique_id.clone(),
            priority: job.priority,
            run_at: time::from_micros(job.run_at),
            enqueued_at: time::from_micros(job.enqueued_at),
            attempt: job.failures.unsigned_abs() + 1,
            waits: job.waits.unsigned_abs(),
            max_attempts: job.max_attempts.unsigned_abs(),
            items: JobItem::all(job.limit_names.clone(), job.limit_keys.clone(), &job.counts, &[]),
            payload: job.payload.clone(),
        }
    }

    /// The payload.
    ///
    /// # Errors
    /// The payload is of another type: returned with `?`, that is a failure of the job.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload)
    }

    /// The payload as it stands, in JSON.
    pub fn payload_json(&self) -> &str {
        &self.payload
    }
}

/// Runs jobs.
///
/// The connection is in a READ COMMITTED transaction that commits together with the job's completion, if the worker still
/// has the job by then; write through it what is to happen exactly once. Do not commit it yourself. An error, or a panic,
/// rolls it back and counts as a failure: the job is tried again after a pause, under a new reservation, or is dead.
///
/// If the job is lost to another worker (this one has not reached the database for longer than its lease), the future is
/// dropped.
pub trait Handler: Send + Sync + 'static {
    /// Runs one job.
    fn run(&self, job: &RunningJob, tx: &mut PgConnection) -> impl Future<Output = Result<Finish, BoxError>> + Send;
}

/// A handler made of a closure, from [`handler_fn`].
#[derive(Clone, Copy, Debug)]
pub struct HandlerFn<F>(F);

/// Makes a handler of a closure that returns a boxed future: `handler_fn(|job, tx| Box::pin(async move { .. }))`.
pub const fn handler_fn<F>(run: F) -> HandlerFn<F>
where
    F: for<'a> Fn(
            &'a RunningJob,
            &'a mut PgConnection,
        ) -> Pin<Box<dyn Future<Output = Result<Finish, BoxError>> + Send + 'a>>
        + Send
        + Sync
        + 'static,
{
    HandlerFn(run)
}

impl<F> Handler for HandlerFn<F>
where
    F: for<'a> Fn(
            &'a RunningJob,
            &'a mut PgConnection,
        ) -> Pin<Box<dyn Future<Output = Result<Finish, BoxError>> + Send + 'a>>
        + Send
        + Sync
        + 'static,
{
    async fn run(&self, job: &RunningJob, tx: &mut PgConnection) -> Result<Finish, BoxError> {
        (self.0)(job, tx).await
    }
}
