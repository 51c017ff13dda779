use sqlx::PgConnection;

use crate::call::Item;
use crate::error::Error;
use crate::observability::CallSpan;
use crate::queue::answers::{Settled, found, missing, no_such_item, settled};
use crate::queue::enqueue::Enqueueing;
use crate::queue::job::ReadyJob;
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
#[must_use = "it does nothing until one of its methods is called"]
pub struct QueueWithin<'c> {
    pub(super) queue: &'c Queue,
    pub(super) connection: &'c mut PgConnection,
}

impl QueueWithin<'_> {
    /// Enqueues a job: reserves its tokens and writes it. If a limit allows no further reservation, the job is denied and
    /// the answer has a `retry_after`.
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
    /// See [`QueueWithin`]. A `run_at` in the past is no error here: the job's outcome is [`EnqueueOutcome::RunAtPast`].
    ///
    /// [`EnqueueOutcome::RunAtPast`]: crate::queue::EnqueueOutcome::RunAtPast
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
    /// # In a transaction
    /// Runs in the caller's transaction, sees what that has taken, and keeps no rows locked.
    pub async fn estimate(self, job: Job) -> Result<Estimate, Error> {
        let job = self.queue.check(job)?;
        let answer = self.send(&[job], true).await?.pop();
        Estimate::new(&answer.ok_or_else(missing)?)
    }

    /// Cancels a job that has not started: see [`Queue::cancel`]. Jobs that move up do not start until the caller's
    /// transaction ends. Jobs ahead of them are not held up.
    pub async fn cancel(self, id: i64) -> Result<JobState, Error> {
        let Queue { context, name, .. } = self.queue;
        let limits = KnownLimits::all(&context.limits());
        let state = cancel(self.connection, &context.statements, name, id, &limits).await;
        found(state.map_err(|error| context.error(error))?, id, name)
    }

    /// Replaces the count that a job reserved with the count that it actually used: see [`Queue::settle`]. In a handler, settle
    /// last: other transactions wait for the row of the limit.
    pub async fn settle(self, id: i64, used: impl Into<Item> + Send) -> Result<bool, Error> {
        let Queue { context, name, .. } = self.queue;
        let Settled { limit, keys, count } =
            Settled::new(self.queue.context.limiter.transaction_limiter(), used.into())?;
        let limits = KnownLimits::of(&context.limits(), [&*limit]);
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
            .send(self.connection, &context.statements)
            .await;
        answers.map_err(|error| context.error(error))
    }
}

impl Queue {
    /// Runs calls on this connection, in the caller's transaction: see [`QueueWithin`].
    pub fn within<'c>(&'c self, connection: &'c mut PgConnection) -> QueueWithin<'c> {
        QueueWithin { queue: self, connection }
    }
}
