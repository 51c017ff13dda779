use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::PgConnection;

use crate::call::Item;
use crate::error::{Error, InvalidJob};
use crate::limiter::Limiter;
use crate::observability::{self, Seen};
use crate::queue::enqueue::Enqueueing;
use crate::queue::gathered::Gathered;
use crate::queue::job::ReadyJob;
use crate::queue::own::Site;
use crate::queue::within::{Settled, missing, no_such_item, settled};
use crate::queue::{
    Enqueued, Estimate, GroupCounts, Handler, Job, JobInfo, JobState, QueueConfig, QueueWithin, Worker, WorkerConfig,
    time,
};
use crate::sql::queue::{
    EnqueueAnswer, JobFilter, KnownLimits, cancel, discard, group_rows, job_rows, prune, prune_dead, requeue, settle,
};

/// The longest name of a queue, in bytes.
const LONGEST_NAME: usize = 255;

/// Jobs removed in one transaction.
const PRUNED_AT_ONCE: i32 = 1000;

/// A rate-limited queue: see the [module](crate::queue). Cheap to clone, `Send` and `Sync`.
///
/// Its methods run in transactions of its own, READ COMMITTED and retried on a conflict; those of
/// [`within`](Self::within) run in the caller's.
///
/// # Errors
/// All methods: [`Error::InvalidJob`] and [`Error::Invalid`] before anything is sent; [`Error::SchemaMissing`],
/// [`Error::Unavailable`], [`Error::RetriesExhausted`], [`Error::Database`] and [`Error::Closed`] if nothing was done;
/// [`Error::OutcomeUnknown`] if it may have been. With a [unique id](Job::unique_id) a job can then be enqueued once more.
///
/// # Cancel safety
/// Dropping the future of a call is safe: it was done as a whole or not at all.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(super) site: Site,
    pub(super) name: Arc<str>,
    pub(super) config: QueueConfig,
    gathered: Arc<Gathered>,
}

impl Queue {
    /// The queue of this name, with the limits, the pool and the schema of the limiter.
    ///
    /// # Errors
    /// [`InvalidJob::Queue`] if the name is empty, longer than 255 bytes, or holds a NUL.
    pub fn new(limiter: &Limiter, name: &str) -> Result<Self, InvalidJob> {
        Self::with_config(limiter, name, QueueConfig::default())
    }

    /// The same with this configuration.
    ///
    /// # Errors
    /// As of [`new`](Self::new).
    pub fn with_config(limiter: &Limiter, name: &str, config: QueueConfig) -> Result<Self, InvalidJob> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
            return Err(InvalidJob::Queue { bytes: name.len() });
        }
        let (site, name): (_, Arc<str>) = (Site::new(limiter), name.into());
        let gathered = Arc::new(Gathered::new(site.clone(), Arc::clone(&name)));
        Ok(Self { site, name, config, gathered })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limiter whose limits its jobs reserve from.
    pub const fn limiter(&self) -> &Limiter {
        &self.site.limiter
    }

    /// Calls on this connection, within the caller's transaction: see [`QueueWithin`].
    pub fn within<'c>(&'c self, connection: &'c mut PgConnection) -> QueueWithin<'c> {
        QueueWithin { queue: self, connection }
    }

    /// A worker that runs the jobs of this queue: see [`Worker::run`].
    ///
    /// # Errors
    /// [`InvalidJob::Config`] if the concurrency is 0 or more than the pool has connections for, or a length is too short.
    pub fn worker<H: Handler>(&self, config: WorkerConfig, handler: H) -> Result<Worker<H>, InvalidJob> {
        Worker::new(self.clone(), config, handler)
    }

    /// Reserves the job's tokens and writes the job, or says when that could be done. Those who enqueue at the same time,
    /// over this handle and its clones, do so in one statement and one commit.
    ///
    /// # Errors
    /// See [`Queue`]; [`Error::Overloaded`].
    ///
    /// # Cancel safety
    /// Safe; it may happen all the same.
    ///
    /// # In a transaction
    /// In one of its own; [`within`](Self::within) has the same for the caller's.
    pub async fn enqueue(&self, job: Job) -> Result<Enqueued, Error> {
        let seen = Seen::enqueue(false, &self.name, 1);
        let running = async {
            let (job, answer) = self.gathered.enqueue(self.check(job)?).await?;
            self.answered(&answer, &job)
        };
        seen.watch(running).await
    }

    /// The same with several jobs, in one transaction and in this order. Each is scheduled or refused by itself.
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe; it may happen all the same.
    ///
    /// # In a transaction
    /// In one of its own; [`within`](Self::within) has the same for the caller's.
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = Job> + Send) -> Result<Vec<Enqueued>, Error> {
        let jobs: Vec<Job> = jobs.into_iter().collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let seen = Seen::enqueue(false, &self.name, jobs.len());
        let running = async {
            let jobs = self.check_all(jobs)?;
            let answers = self.send(&jobs, false).await?;
            answers.iter().zip(&jobs).map(|(answer, job)| self.answered(answer, job)).collect()
        };
        seen.watch(running).await
    }

    /// When the job would run if it were enqueued now, and how many of its group wait already. Takes and writes nothing.
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe: nothing is written.
    ///
    /// # In a transaction
    /// In one of its own; [`within`](Self::within) has the same for the caller's.
    pub async fn estimate(&self, job: Job) -> Result<Estimate, Error> {
        let job = self.check(job)?;
        let answer = self.send(&[job], true).await?.pop();
        Estimate::new(&answer.ok_or_else(missing)?)
    }

    /// Cancels a job that has not started, and gives its tokens back: the jobs of the group behind it that reserved the same
    /// move up, each to the time of the one before it. Only the next 1,000 jobs of the group move up. If there are more, the time
    /// of the last job that moved stays free, no token is given back, and the times promised to the others stay as they are.
    /// What the job has paid ahead for its start is returned to the limit by the next worker that looks. Answers the state that it was in; it is cancelled now if that was [`JobState::Scheduled`] or
    /// [`JobState::Available`], and nothing has changed otherwise. Of a limit that this limiter does not know, nothing is
    /// given back.
    ///
    /// # Errors
    /// See [`Queue`]; [`InvalidJob::UnknownJob`].
    ///
    /// # Cancel safety
    /// Safe; it may happen all the same.
    ///
    /// # In a transaction
    /// In one of its own; [`within`](Self::within) has the same for the caller's.
    pub async fn cancel(&self, id: i64) -> Result<JobState, Error> {
        let arguments = (&*self.name, id, KnownLimits::all(self.site.limits()));
        let run =
            self.site.own(arguments, |conn, sql, (name, id, limits)| Box::pin(cancel(conn, sql, name, *id, limits)));
        found(run.await?, id, &self.name)
    }

    /// Corrects what a job reserved from a limit and key to the count that it really used, up or down: an estimate was
    /// reserved before, and now it is known. Once for each: `false`, and nothing changes, if it was settled before. What it
    /// used less is given back, up to the capacity; what it used more is owed. Settled in its handler, it also corrects how
    /// soon the next jobs of the group may start; afterwards, only what can be reserved. Where keys are hashed, the key may be
    /// given as it is, or as the handler gets it.
    ///
    /// # Errors
    /// See [`Queue`]; [`InvalidJob::UnknownJob`], [`InvalidJob::NotReserved`], [`InvalidJob::NotStarted`].
    ///
    /// # Cancel safety
    /// Safe; it may happen all the same.
    ///
    /// # In a transaction
    /// In one of its own; [`within`](Self::within) has the same for the caller's.
    pub async fn settle(&self, id: i64, used: impl Into<Item> + Send) -> Result<bool, Error> {
        let Settled { limit, keys, count } = self.settled_item(used.into())?;
        let limits = KnownLimits::of(self.site.limits(), [&*limit]);
        let mut said = None;
        for key in &keys {
            let arguments = (&*self.name, id, (&*limit, &**key, count), limits.clone());
            let run = self.site.own(arguments, |conn, sql, (name, id, used, limits)| {
                Box::pin(settle(conn, sql, name, *id, *used, limits))
            });
            said = run.await?;
            if !no_such_item(said.as_deref()) {
                break;
            }
        }
        settled(said, id, &self.name, &limit)
    }

    /// Lets a dead or cancelled job run once more, with all its attempts, under a new reservation, and answers when that will
    /// be. `None`, and nothing changes, if it is neither. Of a limit that this limiter does not know, nothing is reserved (and
    /// a worker that does not know it leaves the job alone).
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe; it may happen all the same.
    ///
    /// # In a transaction
    /// In one of its own.
    pub async fn requeue(&self, id: i64) -> Result<Option<SystemTime>, Error> {
        let arguments = (&*self.name, id, KnownLimits::all(self.site.limits()));
        let run =
            self.site.own(arguments, |conn, sql, (name, id, limits)| Box::pin(requeue(conn, sql, name, *id, limits)));
        Ok(run.await?.map(time::from_micros))
    }

    /// Removes those of these jobs that are dead, and returns how many it has removed. The others stay as they are: a job that
    /// has not started can be cancelled, and one that has ended is pruned. The tokens of a dead job were spent.
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe; it may happen all the same.
    ///
    /// # In a transaction
    /// In one of its own.
    pub async fn discard(&self, ids: &[i64]) -> Result<u64, Error> {
        let arguments = (&*self.name, ids);
        let run = self.site.own(arguments, |conn, sql, (name, ids)| Box::pin(discard(conn, sql, name, ids)));
        Ok(run.await?.len() as u64)
    }

    /// The job of this id, if there is one. Takes the right to SELECT from `rate_limit_jobs`.
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe: nothing is written.
    ///
    /// # In a transaction
    /// In one of its own.
    pub async fn job(&self, id: i64) -> Result<Option<JobInfo>, Error> {
        let filter = JobFilter { queue: Some(&self.name), id: Some(id), ..JobFilter::default() };
        let run = self.site.own(filter, |conn, sql, filter| Box::pin(job_rows(conn, sql, *filter, 1)));
        Ok(run.await?.pop().map(Into::into))
    }

    /// The first jobs in this state (or in any), by the time at which they run: dead ones are listed so. Takes the right to
    /// SELECT from `rate_limit_jobs`.
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe: nothing is written.
    ///
    /// # In a transaction
    /// In one of its own.
    pub async fn jobs(&self, state: Option<JobState>, most: u32) -> Result<Vec<JobInfo>, Error> {
        let state = state.map(JobState::as_str);
        let filter = JobFilter { queue: Some(&self.name), state, ..JobFilter::default() };
        let run = self
            .site
            .own((filter, most), |conn, sql, (filter, most)| Box::pin(job_rows(conn, sql, *filter, i64::from(*most))));
        Ok(run.await?.into_iter().map(Into::into).collect())
    }

    /// How many jobs there are in which state, for each group. Takes the right to SELECT from `rate_limit_jobs`, and goes
    /// through all jobs of the queue.
    ///
    /// # Errors
    /// See [`Queue`].
    ///
    /// # Cancel safety
    /// Safe: nothing is written.
    ///
    /// # In a transaction
    /// In one of its own.
    pub async fn counts(&self) -> Result<Vec<GroupCounts>, Error> {
        let run = self.site.own(&*self.name, |conn, sql, name| Box::pin(group_rows(conn, sql, Some(name))));
        Ok(run.await?.into_iter().map(Into::into).collect())
    }

    /// Removes jobs that were done or cancelled so long ago, and says how many. Workers do so by themselves, after
    /// [`WorkerConfig::keep_ended`].
    ///
    /// # Errors
    /// See [`Queue`]. Jobs that were removed before an error stay removed.
    ///
    /// # Cancel safety
    /// Safe: what was removed stays removed.
    ///
    /// # In a transaction
    /// In short ones of its own.
    pub async fn prune(&self, ended_for: Duration) -> Result<u64, Error> {
        let arguments = (&*self.name, time::capped(ended_for));
        let mut pruned = 0;
        loop {
            let run = self.site.own(arguments, |conn, sql, (name, ended_for)| {
                Box::pin(prune(conn, sql, name, *ended_for, PRUNED_AT_ONCE))
            });
            let step = run.await?;
            pruned += step.unsigned_abs();
            if step < i64::from(PRUNED_AT_ONCE) {
                return Ok(pruned);
            }
        }
    }

    /// Removes jobs that have been dead for so long, and returns how many. Workers do not: a dead job waits for a decision.
    ///
    /// # Errors
    /// See [`Queue`]. Jobs that were removed before an error stay removed.
    ///
    /// # Cancel safety
    /// Safe: what was removed stays removed.
    ///
    /// # In a transaction
    /// In short ones of its own.
    pub async fn prune_dead(&self, dead_for: Duration) -> Result<u64, Error> {
        prune_dead_of(&self.site, Some(&self.name), dead_for).await
    }

    pub(super) fn check(&self, job: Job) -> Result<ReadyJob, Error> {
        job.check(self.site.limiter.rate_limits(), &self.config)
    }

    pub(super) fn check_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<Vec<ReadyJob>, Error> {
        jobs.into_iter().map(|job| self.check(job)).collect()
    }

    /// What the database said of a job that was enqueued, counted.
    pub(super) fn answered(&self, answer: &EnqueueAnswer, job: &ReadyJob) -> Result<Enqueued, Error> {
        let enqueued = Enqueued::new(answer, &job.call)?;
        let refused = answer.refused.iter().copied().chain(std::iter::repeat(false));
        let limits = job.call.items.iter().map(|item| &item.name).zip(refused);
        observability::enqueued(&self.name, enqueued.word(), limits);
        Ok(enqueued)
    }

    async fn send(&self, jobs: &[ReadyJob], only_estimate: bool) -> Result<Vec<EnqueueAnswer>, Error> {
        let enqueueing = Enqueueing::new(&self.name, &jobs.iter().collect::<Vec<_>>(), only_estimate);
        self.site.own(enqueueing, |conn, sql, enqueueing| Box::pin(enqueueing.run(conn, sql))).await
    }
}

/// Removes jobs of a queue, or of all queues, that have been dead for so long.
pub(super) async fn prune_dead_of(site: &Site, queue: Option<&str>, dead_for: Duration) -> Result<u64, Error> {
    let arguments = (queue, time::capped(dead_for));
    let mut pruned = 0;
    loop {
        let run = site.own(arguments, |conn, sql, (queue, dead_for)| {
            Box::pin(prune_dead(conn, sql, *queue, *dead_for, PRUNED_AT_ONCE))
        });
        let step = run.await?;
        pruned += step.unsigned_abs();
        if step < i64::from(PRUNED_AT_ONCE) {
            return Ok(pruned);
        }
    }
}

/// The state, or that there is no such job.
pub(super) fn found(state: Option<String>, id: i64, queue: &str) -> Result<JobState, Error> {
    match state {
        Some(state) => Ok(JobState::of(&state)),
        None => Err(InvalidJob::UnknownJob { id, queue: queue.to_owned() }.into()),
    }
}
