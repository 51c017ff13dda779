use std::sync::Arc;

use sqlx::PgConnection;

use crate::call::{Item, Op};
use crate::error::{Error, InvalidJob};
use crate::observability::CallSpan;
use crate::queue::enqueue::Enqueueing;
use crate::queue::job::ReadyJob;
use crate::queue::queue::found;
use crate::queue::{Enqueued, Estimate, Job, JobState, Queue};
use crate::sql::check_release;
use crate::sql::queue::{EnqueueAnswer, KnownLimits, cancel, settle};

/// Calls of a queue in the caller's transaction, created by [`Queue::within`]. Each call is one statement and one round trip,
/// and runs at any isolation level.
///
/// # In a transaction
/// Reservations and jobs take effect when the caller commits; a rollback undoes both. As with
/// [`Limiter::within`](crate::Limiter::within), the rows of the limits stay locked until then. So enqueue late in the
/// transaction, and enqueue jobs of several groups in one call.
///
/// # Errors
/// Those of [`Within`](crate::Within), and [`Error::InvalidJob`]. After an error other than [`Error::Invalid`] and
/// [`Error::InvalidJob`], return it and roll back.
///
/// # Cancel safety
/// Not safe. A dropped future may leave its statement running on the server, so roll the transaction back.
#[derive(Debug)]
pub struct QueueWithin<'c> {
    pub(super) queue: &'c Queue,
    pub(super) connection: &'c mut PgConnection,
}

impl QueueWithin<'_> {
    /// Enqueues a job: reserves its tokens and writes it. If a limit allows no further reservation, the job is denied and
    /// the answer has a `retry_after`.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Not safe. The statement may still run on the server, so roll the transaction back.
    ///
    /// # In a transaction
    /// Runs in the caller's transaction, and commits or rolls back with it. Its rows stay locked until then.
    pub async fn enqueue(self, job: Job) -> Result<Enqueued, Error> {
        let queue = self.queue;
        let span = CallSpan::enqueue(true, &queue.name, 1);
        let running = async {
            let job = queue.check(job)?;
            let answer = self.send(std::slice::from_ref(&job), false).await?.pop();
            queue.answered(&answer.ok_or_else(missing)?, &job).not_past()
        };
        span.watch(running).await
    }

    /// Enqueues several jobs, in this order. Each job is scheduled or denied independently of the others.
    ///
    /// # Errors
    /// See [`QueueWithin`]. A job whose time is in the past is no error here: its outcome is [`EnqueueOutcome::Past`].
    ///
    /// [`EnqueueOutcome::Past`]: crate::queue::EnqueueOutcome::Past
    ///
    /// # Cancel safety
    /// Not safe. The statement may still run on the server, so roll the transaction back.
    ///
    /// # In a transaction
    /// Runs in the caller's transaction, and commits or rolls back with it. Its rows stay locked until then.
    pub async fn enqueue_all(self, jobs: impl IntoIterator<Item = Job> + Send) -> Result<Vec<Enqueued>, Error> {
        let (queue, jobs) = (self.queue, jobs.into_iter().collect::<Vec<Job>>());
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let span = CallSpan::enqueue(true, &queue.name, jobs.len());
        let running = async {
            let jobs = queue.check_all(jobs)?;
            let answers = self.send(&jobs, false).await?;
            Ok(answers.iter().zip(&jobs).map(|(answer, job)| queue.answered(answer, job)).collect::<Vec<_>>())
        };
        span.watch(running).await
    }

    /// Returns when the job would run if it were enqueued now, and how many jobs of its group already wait. Takes no tokens
    /// and writes nothing.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Not safe. The statement may still run on the server, so roll the transaction back.
    ///
    /// # In a transaction
    /// Runs in the caller's transaction, sees what that has taken, and keeps no rows locked.
    pub async fn estimate(self, job: Job) -> Result<Estimate, Error> {
        let job = self.queue.check(job)?;
        let answer = self.send(&[job], true).await?.pop();
        Estimate::new(&answer.ok_or_else(missing)?)
    }

    /// Cancels a job that has not started: see [`Queue::cancel`]. Jobs that move up do not start until the caller's
    /// transaction ends. Jobs ahead of them are not held up.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Not safe. The statement may still run on the server, so roll the transaction back.
    ///
    /// # In a transaction
    /// Runs in the caller's transaction, and commits or rolls back with it. Its rows stay locked until then.
    pub async fn cancel(self, id: i64) -> Result<JobState, Error> {
        let Queue { context, name, .. } = self.queue;
        let limits = KnownLimits::all(context.limits());
        let state = cancel(self.connection, &context.statements, name, id, &limits).await;
        found(state.map_err(|error| context.error(error))?, id, name)
    }

    /// Replaces the count that a job reserved with the count that it really used: see [`Queue::settle`]. In a handler, settle
    /// last: other transactions wait for the row of the limit.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Not safe. The statement may still run on the server, so roll the transaction back.
    ///
    /// # In a transaction
    /// Runs in the caller's transaction, and commits or rolls back with it. Its rows stay locked until then.
    pub async fn settle(self, id: i64, used: impl Into<Item> + Send) -> Result<bool, Error> {
        let Queue { context, name, .. } = self.queue;
        let Settled { limit, keys, count } = self.queue.settled_item(used.into())?;
        let limits = KnownLimits::of(context.limits(), [&*limit]);
        let mut said = None;
        for key in &keys {
            let run = settle(self.connection, &context.statements, name, id, (&limit, key, count), &limits).await;
            said = run.map_err(|error| context.error(error))?;
            if !no_such_item(said.as_deref()) {
                break;
            }
        }
        settled(said, id, name, &limit)
    }

    async fn send(self, jobs: &[ReadyJob], only_estimate: bool) -> Result<Vec<EnqueueAnswer>, Error> {
        let Queue { context, name, .. } = self.queue;
        let looked = check_release(self.connection, context.limiter.transaction_limiter().statements()).await;
        looked.map_err(|error| context.error(error))?;
        let answers = Enqueueing::new(name, &jobs.iter().collect::<Vec<_>>(), only_estimate)
            .run(self.connection, &context.statements)
            .await;
        answers.map_err(|error| context.error(error))
    }
}

/// The count that a job really used, with its limit and key.
pub(super) struct Settled {
    pub(super) limit: String,
    /// The keys to try: the hash of the given key, then the given key itself, because handlers get keys as they are stored.
    pub(super) keys: Vec<Arc<str>>,
    pub(super) count: f64,
}

/// Whether the database answered that the job reserved nothing from this limit and key.
pub(super) fn no_such_item(said: Option<&str>) -> bool {
    said == Some("no_such_item")
}

/// Converts the database's answer to a settle: `true` if the item was settled now, `false` if it was settled before.
pub(super) fn settled(said: Option<String>, id: i64, queue: &str, limit: &str) -> Result<bool, Error> {
    match said.as_deref() {
        Some("settled") => Ok(true),
        Some("already") => Ok(false),
        Some("no_such_item") => Err(InvalidJob::NotReserved { id, limit: limit.to_owned() }.into()),
        Some(_) => Err(InvalidJob::NotStarted { id }.into()),
        None => Err(InvalidJob::UnknownJob { id, queue: queue.to_owned() }.into()),
    }
}

pub(super) fn missing() -> Error {
    Error::Database { source: sqlx::Error::RowNotFound }
}

impl Queue {
    /// Checks the item to settle like one that is charged.
    pub(super) fn settled_item(&self, used: Item) -> Result<Settled, Error> {
        let limit = used.limit.name.to_string();
        if used.limit.inline.is_some() {
            return Err(InvalidJob::InlineLimit { limit }.into());
        }
        let given = used.key.0.clone();
        let call = self.context.limiter.transaction_limiter().resolve(Op::Charge, used.into())?;
        let item = &call.items[0];
        let mut keys = vec![item.key.clone()];
        if item.key != given {
            keys.push(given);
        }
        Ok(Settled { limit, keys, count: item.count })
    }
}
