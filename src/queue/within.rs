use std::sync::Arc;

use sqlx::PgConnection;

use crate::call::{Item, Op};
use crate::error::{Error, InvalidJob};
use crate::observability::Seen;
use crate::queue::enqueue::Enqueueing;
use crate::queue::job::ReadyJob;
use crate::queue::queue::found;
use crate::queue::{Enqueued, Estimate, Job, JobState, Queue};
use crate::sql::check_release;
use crate::sql::queue::{EnqueueAnswer, KnownLimits, cancel, settle};

/// Calls of a queue within the caller's transaction, from [`Queue::within`]: one statement, one round trip each, at any
/// isolation level.
///
/// # In a transaction
/// Reservations and jobs are there when the caller commits; a rollback undoes both. Rows of the limits stay locked until
/// then, as after [`Limiter::within`](crate::Limiter::within): so enqueue late, and jobs of several groups in one call.
///
/// # Errors
/// As of [`Within`](crate::Within), and [`Error::InvalidJob`] before anything is sent. After any other error return it and
/// roll back.
///
/// # Cancel safety
/// A dropped future may leave the statement running on the server. Roll the transaction back then.
#[derive(Debug)]
pub struct QueueWithin<'c> {
    pub(super) queue: &'c Queue,
    pub(super) connection: &'c mut PgConnection,
}

impl QueueWithin<'_> {
    /// Reserves the job's tokens and writes the job, or says when that could be done.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: the statement may still run on the server.
    ///
    /// # In a transaction
    /// Part of the caller's: done with its commit and undone by its rollback, and the rows stay locked until then.
    pub async fn enqueue(self, job: Job) -> Result<Enqueued, Error> {
        let queue = self.queue;
        let seen = Seen::enqueue(true, &queue.name, 1);
        let running = async {
            let job = queue.check(job)?;
            let answer = self.send(std::slice::from_ref(&job), false).await?.pop();
            queue.answered(&answer.ok_or_else(missing)?, &job)
        };
        seen.watch(running).await
    }

    /// The same with several jobs, in this order. Each is scheduled or refused by itself.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: the statement may still run on the server.
    ///
    /// # In a transaction
    /// Part of the caller's: done with its commit and undone by its rollback, and the rows stay locked until then.
    pub async fn enqueue_all(self, jobs: impl IntoIterator<Item = Job> + Send) -> Result<Vec<Enqueued>, Error> {
        let (queue, jobs) = (self.queue, jobs.into_iter().collect::<Vec<Job>>());
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let seen = Seen::enqueue(true, &queue.name, jobs.len());
        let running = async {
            let jobs = queue.check_all(jobs)?;
            let answers = self.send(&jobs, false).await?;
            answers.iter().zip(&jobs).map(|(answer, job)| queue.answered(answer, job)).collect()
        };
        seen.watch(running).await
    }

    /// When the job would run if it were enqueued now, and how many of its group wait already. Takes and writes nothing.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: the statement may still run on the server.
    ///
    /// # In a transaction
    /// It sees what this one has taken, and keeps nothing locked.
    pub async fn estimate(self, job: Job) -> Result<Estimate, Error> {
        let job = self.queue.check(job)?;
        let answer = self.send(&[job], true).await?.pop();
        Estimate::new(&answer.ok_or_else(missing)?)
    }

    /// Cancels a job that has not started: see [`Queue::cancel`]. The jobs that move up do not start before the caller's
    /// transaction has ended. Jobs ahead of them do.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: the statement may still run on the server.
    ///
    /// # In a transaction
    /// Part of the caller's: done with its commit and undone by its rollback, and the rows stay locked until then.
    pub async fn cancel(self, id: i64) -> Result<JobState, Error> {
        let Queue { site, name, .. } = self.queue;
        let limits = KnownLimits::all(site.limits());
        let state = cancel(self.connection, &site.statements, name, id, &limits).await;
        found(state.map_err(|error| site.told(error))?, id, name)
    }

    /// Corrects what a job reserved to what it really used: see [`Queue::settle`]. Within a handler's transaction, do it
    /// last: others wait for the limit's row.
    ///
    /// # Errors
    /// See [`QueueWithin`].
    ///
    /// # Cancel safety
    /// Roll the transaction back: the statement may still run on the server.
    ///
    /// # In a transaction
    /// Part of the caller's: done with its commit and undone by its rollback, and the rows stay locked until then.
    pub async fn settle(self, id: i64, used: impl Into<Item> + Send) -> Result<bool, Error> {
        let Queue { site, name, .. } = self.queue;
        let Settled { limit, keys, count } = self.queue.settled_item(used.into())?;
        let limits = KnownLimits::of(site.limits(), [&*limit]);
        let mut said = None;
        for key in &keys {
            let run = settle(self.connection, &site.statements, name, id, (&limit, key, count), &limits).await;
            said = run.map_err(|error| site.told(error))?;
            if !no_such_item(said.as_deref()) {
                break;
            }
        }
        settled(said, id, name, &limit)
    }

    async fn send(self, jobs: &[ReadyJob], only_estimate: bool) -> Result<Vec<EnqueueAnswer>, Error> {
        let Queue { site, name, .. } = self.queue;
        let looked = check_release(self.connection, site.limiter.rate_limits().statements()).await;
        looked.map_err(|error| site.told(error))?;
        let answers = Enqueueing::new(name, &jobs.iter().collect::<Vec<_>>(), only_estimate)
            .run(self.connection, &site.statements)
            .await;
        answers.map_err(|error| site.told(error))
    }
}

/// What a job really used.
pub(super) struct Settled {
    pub(super) limit: String,
    /// As stored, if it was given as it is; and as given, if that is how it is stored: handlers get it so.
    pub(super) keys: Vec<Arc<str>>,
    pub(super) count: f64,
}

/// Whether the job reserved nothing under the key.
pub(super) fn no_such_item(said: Option<&str>) -> bool {
    said == Some("no_such_item")
}

/// Whether it was settled now.
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
    /// The item that is settled, checked like one that is charged.
    pub(super) fn settled_item(&self, used: Item) -> Result<Settled, Error> {
        let limit = used.limit.name.to_string();
        if used.limit.inline.is_some() {
            return Err(InvalidJob::InlineLimit { limit }.into());
        }
        let given = used.key.0.clone();
        let call = self.site.limiter.rate_limits().resolve(Op::Charge, used.into())?;
        let item = &call.items[0];
        let mut keys = vec![item.key.clone()];
        if item.key != given {
            keys.push(given);
        }
        Ok(Settled { limit, keys, count: item.count })
    }
}
