use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use sqlx::PgConnection;

use crate::call::Hidden;
use crate::queue::{JobItem, time};
use crate::sql::queue::ClaimedJob;

/// Any error that a handler returns.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a handler ended a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The job is done. The transaction commits together with the job's completion.
    Done,
    /// The job must wait for this duration, because the third party returned 429 with `Retry-After`. The transaction is rolled
    /// back, and no job of the group starts until the time has passed. Then this job is the first of its group.
    ///
    /// A wait is not a failure: [`RunningJob::attempt`] stays the same, and [`RunningJob::waits`] counts it. After
    /// [`WorkerConfig::max_waits`](crate::queue::WorkerConfig::max_waits) waits, each further one counts as a failure, too.
    ///
    /// A wait longer than [`WorkerConfig::longest_wait`](crate::queue::WorkerConfig::longest_wait) is cut to that.
    /// [`Queue::resume_group`](crate::queue::Queue::resume_group) ends a wait early. Cancelling the job does not.
    ///
    /// Jobs of the group that have already started keep running. Jobs that other workers have already claimed, for the next
    /// milliseconds, still start.
    Wait(Duration),
    /// The job cannot be done, now or later. The transaction is rolled back and the job is dead, with this reason as its
    /// error.
    GiveUp(String),
}

/// A job that a worker has started. Like that of [`JobInfo`](crate::queue::JobInfo), its `{:?}` output leaves out what may
/// be personal data.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunningJob {
    /// The job's id.
    pub id: i64,
    /// Its group, as stored: hashed if there is a [`KeySecret`](crate::KeySecret).
    pub group: String,
    /// Its unique id.
    pub unique_id: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// The time that it was scheduled for.
    pub run_at: SystemTime,
    /// When it was enqueued.
    pub enqueued_at: SystemTime,
    /// The number of this attempt, starting at 1: the number of failures so far, plus 1. An attempt that ended in
    /// [`Finish::Wait`] is repeated under the same number.
    pub attempt: u32,
    /// How many times its handler has returned [`Finish::Wait`], over all attempts.
    pub waits: u32,
    /// The number of failures after which it is dead.
    pub max_attempts: u32,
    /// Its reservations. [`JobItem::used`] is always `None` here.
    pub items: Vec<JobItem>,
    /// The slots of concurrency limits that it holds. [`JobItem::used`] is always `None` here.
    pub slots: Vec<JobItem>,
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
            .field("slots", &self.slots)
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
            slots: job.slots.iter().cloned().map(JobItem::slot).collect(),
            payload: job.payload.clone(),
        }
    }

    /// Deserializes the payload.
    ///
    /// # Errors
    /// The payload is not of type `T`. If the handler returns this error with `?`, the job has failed.
    pub fn payload<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload)
    }

    /// The payload as stored, in JSON.
    pub fn payload_json(&self) -> &str {
        &self.payload
    }
}

/// Runs the jobs of a queue: your code. For a closure, use [`handler_fn`].
///
/// The connection is in a READ COMMITTED transaction. It commits together with the job's completion, if the worker still has
/// the job by then. Write through it what must happen exactly once, and do not commit it yourself.
///
/// If the handler returns an error or panics, the transaction is rolled back and the job has failed. It is retried after a
/// pause, with a new reservation, or is dead after too many failures.
///
/// If the worker cannot reach the database for longer than its lease, the job is lost to another worker, and the future is
/// dropped.
pub trait Handler: Send + Sync + 'static {
    /// Runs one job.
    fn run(&self, job: &RunningJob, tx: &mut PgConnection) -> impl Future<Output = Result<Finish, BoxError>> + Send;
}

/// A [`Handler`] that calls a closure. Created by [`handler_fn`].
#[derive(Clone, Copy, Debug)]
pub struct HandlerFn<F>(F);

/// Returns a handler that calls a closure. The closure returns a boxed future:
/// `handler_fn(|job, tx| Box::pin(async move { .. }))`.
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
