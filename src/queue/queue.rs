use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::call::{Item, Key};
use crate::error::{Error, InvalidJob};
use crate::limit::{LONGEST_NAME, is_storable};
use crate::limiter::Limiter;
use crate::observability::{self, CallSpan};
use crate::queue::answers::{Settled, found, missing, no_such_item, settled};
use crate::queue::context::QueueContext;
use crate::queue::enqueue::Enqueueing;
use crate::queue::enqueue_batcher::EnqueueBatcher;
use crate::queue::job::ReadyJob;
use crate::queue::{Enqueued, Estimate, GroupCounts, Job, JobInfo, JobState, QueueConfig, time};
use crate::sql::queue::{
    EnqueueAnswer, JobFilter, KnownLimits, cancel, discard, group_rows, job_rows, prune, prune_dead, requeue,
    requeue_dead, settle,
};

/// The most jobs that one transaction deletes.
const PRUNED_AT_ONCE: i32 = 1000;

/// The most jobs that one transaction requeues: each takes a reservation.
const REQUEUED_AT_ONCE: i32 = 100;

/// How often a step may meet a new job with the unique id of a dead one.
const MOST_CONFLICTS: u32 = 10;

/// Jobs that run later, with tokens that were reserved when they were enqueued: see the [module](crate::queue). Cheap to clone.
///
/// # In a transaction
/// Each method runs in a transaction of the queue's own, and those on many jobs in several short ones. These are READ COMMITTED,
/// and are retried on a conflict, as the limiter's [`RetryPolicy`](crate::RetryPolicy) allows. To enqueue, estimate, cancel or
/// settle in your transaction, use [`within`](Self::within).
///
/// # Errors
/// All methods can return:
/// - [`Error::Invalid`] and [`Error::InvalidJob`] if an argument is invalid, in most cases before anything is sent;
/// - [`Error::SchemaMissing`], [`Error::SchemaTooNew`], [`Error::Pooler`], [`Error::Unavailable`],
///   [`Error::RetriesExhausted`], [`Error::Database`] and [`Error::Closed`] if nothing was changed;
/// - [`Error::OutcomeUnknown`] if the change may have been committed; methods that write nothing do not return it. It is then
///   safe to enqueue a job again if it has a [unique id](Job::unique_id).
///
/// # Cancel safety
/// Dropping the future of a call is safe: each transaction takes effect as a whole or not at all, and the one under way may
/// still commit afterwards.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(super) context: QueueContext,
    pub(super) name: Arc<str>,
    pub(super) config: QueueConfig,
    batcher: Arc<EnqueueBatcher>,
}

impl Queue {
    /// Returns the queue of this name. It uses the limits, the pool and the schema of the limiter.
    ///
    /// # Errors
    /// [`InvalidJob::Queue`] if the name is empty, longer than 255 bytes, or contains a NUL.
    pub fn new(limiter: &Limiter, name: &str) -> Result<Self, InvalidJob> {
        Self::with_config(limiter, name, QueueConfig::default())
    }

    /// Like [`new`](Self::new), with this configuration.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn with_config(limiter: &Limiter, name: &str, config: QueueConfig) -> Result<Self, InvalidJob> {
        if !is_storable(name, 1..=LONGEST_NAME) {
            return Err(InvalidJob::Queue { bytes: name.len() });
        }
        let (context, name): (_, Arc<str>) = (QueueContext::new(limiter), name.into());
        let batcher = Arc::new(EnqueueBatcher::new(context.clone(), Arc::clone(&name)));
        Ok(Self { context, name, config, batcher })
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limiter that defines the limits of the queue's jobs.
    pub const fn limiter(&self) -> &Limiter {
        &self.context.limiter
    }

    /// Enqueues a job: reserves its tokens and writes it. If a limit allows no further reservation, the job is denied and
    /// the answer has a `retry_after`. Concurrent calls on this handle and its clones share statements and commits.
    ///
    /// # Errors
    /// See [`Queue`]; [`Error::Overloaded`] if too many calls on this handle and its clones wait for the database.
    pub async fn enqueue(&self, job: Job) -> Result<Enqueued, Error> {
        let span = CallSpan::enqueue(false, &self.name, 1);
        let running = async {
            let (job, answer) = self.batcher.enqueue(self.check(job)?).await?;
            self.answered(&answer, &job).not_past()
        };
        span.watch(running).await
    }

    /// Enqueues several jobs in one transaction, in this order. Each job is scheduled or denied independently of the others.
    ///
    /// # Errors
    /// See [`Queue`]. A `run_at` in the past is no error here: the job's outcome is [`EnqueueOutcome::RunAtPast`].
    ///
    /// [`EnqueueOutcome::RunAtPast`]: crate::queue::EnqueueOutcome::RunAtPast
    pub async fn enqueue_all(&self, jobs: impl IntoIterator<Item = Job> + Send) -> Result<Vec<Enqueued>, Error> {
        let jobs: Vec<Job> = jobs.into_iter().collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let span = CallSpan::enqueue(false, &self.name, jobs.len());
        let running = async {
            let jobs = self.check_all(jobs)?;
            let enqueueing = Enqueueing::new(&self.name, &jobs.iter().collect::<Vec<_>>(), false);
            let run = self.context.own(enqueueing, |conn, sql, enqueueing| Box::pin(enqueueing.send(conn, sql)));
            let answers = run.await?;
            Ok(answers.iter().zip(&jobs).map(|(answer, job)| self.answered(answer, job)).collect::<Vec<_>>())
        };
        span.watch(running).await
    }

    /// Returns when the job would run if it were enqueued now, and how many jobs of its group already wait. Takes no tokens
    /// and writes nothing.
    pub async fn estimate(&self, job: Job) -> Result<Estimate, Error> {
        let job = self.check(job)?;
        let enqueueing = Enqueueing::new(&self.name, &[&job], true);
        let answer =
            self.context.look(enqueueing, |conn, sql, enqueueing| Box::pin(enqueueing.send(conn, sql))).await?.pop();
        Estimate::new(&answer.ok_or_else(missing)?)
    }

    /// Cancels a job that has not started, and gives its tokens back. Returns the state that the job was in. If that was
    /// [`JobState::Scheduled`] or [`JobState::Available`], the job is cancelled now; otherwise nothing has changed.
    ///
    /// Jobs behind it in the group move up: each job that reserved the same tokens takes the time of the one before it. Jobs
    /// that have failed before, or that set [`Job::run_at`], keep their times. Only the next 1,000 jobs of the group move up, and
    /// none behind the first one that reserved another number of these tokens. If there are more, no token is given back: the
    /// time of the last job that moved stays free, and all later jobs keep their times. If the cancelled job starts at its
    /// `run_at`, no job moves up, and its tokens are given back unless newer jobs without such a time wait for them.
    ///
    /// If the job has already paid tokens ahead for its start, the next worker that looks for jobs returns them. Tokens of a
    /// limit that this limiter does not define are not given back.
    ///
    /// # Errors
    /// See [`Queue`]; [`InvalidJob::UnknownJob`] if the queue has no job with this id.
    pub async fn cancel(&self, id: i64) -> Result<JobState, Error> {
        let arguments = (&*self.name, id, KnownLimits::all(&self.context.limits()));
        let run =
            self.context.own(arguments, |conn, sql, (name, id, limits)| Box::pin(cancel(conn, sql, name, *id, limits)));
        let cancelled = run.await;
        self.context.limiter.discard_all_denials(); // The job may have given tokens back.
        found(cancelled?, id, &self.name)
    }

    /// Replaces the count that a job reserved from a limit and key, an estimate, with the count that it actually used. If the
    /// job used less, the difference is given back, up to the capacity. If it used more, the bucket owes the difference.
    ///
    /// Each limit and key of a job can be settled once. Returns `false`, and changes nothing, if it was settled before.
    ///
    /// Settling before the job ends, as its handler can, also corrects how soon the next jobs of the group may start. Settling
    /// later corrects only what can be reserved. If keys are hashed, pass either the key itself or the hashed key that the
    /// handler gets in [`RunningJob::items`](crate::queue::RunningJob::items).
    ///
    /// # Errors
    /// See [`Queue`]; [`InvalidJob::UnknownJob`] if the queue has no job with this id, [`InvalidJob::NotReserved`] if the job
    /// reserved nothing from this limit and key, [`InvalidJob::NotStarted`] if the job has not started or was cancelled.
    pub async fn settle(&self, id: i64, used: impl Into<Item> + Send) -> Result<bool, Error> {
        let Settled { limit, keys, count } = Settled::new(self.context.limiter.transaction_limiter(), used.into())?;
        let limits = KnownLimits::of(&self.context.limits(), [&*limit]);
        let mut said = None;
        for key in &keys {
            let arguments = (&*self.name, id, (&*limit, &**key, count), limits.clone());
            let run = self.context.own(arguments, |conn, sql, (name, id, used, limits)| {
                Box::pin(settle(conn, sql, name, *id, *used, limits))
            });
            let settled = run.await;
            self.context.limiter.discard_all_denials(); // The job may have given tokens back.
            said = settled?;
            if !no_such_item(said.as_deref()) {
                break;
            }
        }
        settled(said, id, &self.name, &limit)
    }

    /// Schedules a dead or cancelled job again, with all its attempts and a new reservation, and returns when it will run.
    /// Returns `None`, and changes nothing, if the job is neither dead nor cancelled.
    ///
    /// The new reservation ignores `max_reserved`. Nothing is reserved from a limit that this limiter does not define, and a
    /// worker that does not define it leaves the job alone.
    ///
    /// # Errors
    /// See [`Queue`]; [`InvalidJob::UniqueIdTaken`] if a newer job has the job's unique id.
    pub async fn requeue(&self, id: i64) -> Result<Option<SystemTime>, Error> {
        let arguments = (&*self.name, id, KnownLimits::all(&self.context.limits()));
        let run = self
            .context
            .own(arguments, |conn, sql, (name, id, limits)| Box::pin(requeue(conn, sql, name, *id, limits)));
        match run.await {
            Err(Error::Database { source }) if is_unique_violation(&source) => {
                Err(InvalidJob::UniqueIdTaken { id }.into())
            }
            requeued => Ok(requeued?.map(time::from_micros)),
        }
    }

    /// Requeues the dead jobs of the queue, those that died first first, and returns how many: see [`requeue`](Self::requeue). Of
    /// several jobs with the same unique id, one is requeued, and none if another job has the id. Jobs that die meanwhile stay dead.
    ///
    /// # Errors
    /// See [`Queue`]. Jobs that were requeued before an error stay so.
    ///
    /// # In a transaction
    /// Runs in several short transactions of its own, of up to 100 jobs each.
    pub async fn requeue_dead(&self) -> Result<u64, Error> {
        self.requeue_dead_of(None).await
    }

    /// Like [`requeue_dead`](Self::requeue_dead), for the dead jobs of one group: see [`pause_group`](Self::pause_group) for its
    /// name.
    ///
    /// # Errors
    /// See [`requeue_dead`](Self::requeue_dead).
    ///
    /// # In a transaction
    /// Runs in several short transactions of its own, of up to 100 jobs each.
    pub async fn requeue_dead_group(&self, group: impl Into<Key> + Send) -> Result<u64, Error> {
        let mut requeued = 0;
        for group in self.stored_groups(&group.into()) {
            requeued += self.requeue_dead_of(Some(&group)).await?;
        }
        Ok(requeued)
    }

    /// Requeues those that are dead now: jobs that die again meanwhile stay dead, so it ends.
    async fn requeue_dead_of(&self, group: Option<&str>) -> Result<u64, Error> {
        let limits = KnownLimits::all(&self.context.limits());
        let (mut requeued, mut died_before, mut conflicts) = (0, None, 0);
        loop {
            let arguments = ((&*self.name, group, died_before), limits.clone());
            let step = self.context.own(arguments, |conn, sql, (of, limits)| {
                Box::pin(requeue_dead(conn, sql, *of, REQUEUED_AT_ONCE, limits))
            });
            match step.await {
                // Meanwhile, another job was written with the unique id of one of them, which the next step leaves out.
                Err(Error::Database { source }) if is_unique_violation(&source) && conflicts < MOST_CONFLICTS => {
                    conflicts += 1;
                }
                step => match step? {
                    (0, _) => return Ok(requeued),
                    (jobs, before) => (requeued, died_before) = (requeued + jobs.unsigned_abs(), Some(before)),
                },
            }
        }
    }

    /// Deletes the dead jobs among `ids`, and returns how many it deleted. Other jobs stay as they are: cancel a job that has
    /// not started, and leave jobs that are done or cancelled to [`prune`](Self::prune). No tokens are given back: a dead job
    /// has spent them.
    pub async fn discard(&self, ids: &[i64]) -> Result<u64, Error> {
        let arguments = (&*self.name, ids);
        let run = self.context.own(arguments, |conn, sql, (name, ids)| Box::pin(discard(conn, sql, name, ids)));
        Ok(run.await?.len() as u64)
    }

    /// Returns the job of this id, if there is one. Needs the privilege to SELECT from `rate_limit.jobs` and `groups`.
    pub async fn job(&self, id: i64) -> Result<Option<JobInfo>, Error> {
        let filter = JobFilter { queue: Some(&self.name), id: Some(id), ..JobFilter::default() };
        let run = self.context.look(filter, |conn, sql, filter| Box::pin(job_rows(conn, sql, *filter, 1)));
        Ok(run.await?.pop().map(Into::into))
    }

    /// Returns up to `max` jobs in this state, or in any state, ordered by the time at which they run. Use it to list dead
    /// jobs. Needs the privilege to SELECT from `rate_limit.jobs` and `groups`.
    pub async fn jobs(&self, state: Option<JobState>, max: u32) -> Result<Vec<JobInfo>, Error> {
        let state = state.map(JobState::as_str);
        let filter = JobFilter { queue: Some(&self.name), state, ..JobFilter::default() };
        let run = self
            .context
            .look((filter, max), |conn, sql, (filter, max)| Box::pin(job_rows(conn, sql, *filter, i64::from(*max))));
        Ok(run.await?.into_iter().map(Into::into).collect())
    }

    /// Returns the number of jobs in each state, for each group. Reads all jobs of the queue. Needs the privilege to SELECT
    /// from `rate_limit.jobs`, `groups` and `queues`.
    ///
    /// A paused group without jobs is among them, and a queue without jobs that is paused or draining has one row, of the group "".
    pub async fn group_counts(&self) -> Result<Vec<GroupCounts>, Error> {
        let run = self.context.look(&*self.name, |conn, sql, name| Box::pin(group_rows(conn, sql, Some(name))));
        Ok(run.await?.into_iter().map(Into::into).collect())
    }

    /// Deletes jobs that were done or cancelled at least `ended_for` ago, and returns how many. Running workers do this
    /// automatically, after [`WorkerConfig::keep_ended`](crate::queue::WorkerConfig::keep_ended).
    ///
    /// # Errors
    /// See [`Queue`]. Jobs that were deleted before an error stay deleted.
    ///
    /// # In a transaction
    /// Runs in several short transactions of its own, of up to 1,000 jobs each.
    pub async fn prune(&self, ended_for: Duration) -> Result<u64, Error> {
        let arguments = (&*self.name, time::capped(ended_for));
        let step = || {
            self.context.own(arguments, |conn, sql, (name, ended_for)| {
                Box::pin(prune(conn, sql, name, *ended_for, PRUNED_AT_ONCE))
            })
        };
        prune_in_steps(step).await
    }

    /// Deletes jobs that have been dead for at least `dead_for`, and returns how many. Workers never delete dead jobs: you
    /// decide whether to requeue or delete them.
    ///
    /// # Errors
    /// See [`Queue`]. Jobs that were deleted before an error stay deleted.
    ///
    /// # In a transaction
    /// Runs in several short transactions of its own, of up to 1,000 jobs each.
    pub async fn prune_dead(&self, dead_for: Duration) -> Result<u64, Error> {
        prune_dead_of(&self.context, Some(&self.name), dead_for).await
    }

    pub(super) fn check(&self, job: Job) -> Result<ReadyJob, Error> {
        job.check(self.context.limiter.transaction_limiter(), &self.config)
    }

    pub(super) fn check_all(&self, jobs: impl IntoIterator<Item = Job>) -> Result<Vec<ReadyJob>, Error> {
        jobs.into_iter().map(|job| self.check(job)).collect()
    }

    /// Converts the database's answer about an enqueued job, and counts it in the metrics.
    pub(super) fn answered(&self, answer: &EnqueueAnswer, job: &ReadyJob) -> Enqueued {
        let enqueued = Enqueued::new(answer, &job.call);
        let denied = answer.denied.iter().copied().chain(std::iter::repeat(false));
        let limits = job.call.items.iter().map(|item| &item.name).zip(denied);
        observability::enqueued(&self.name, enqueued.word(), limits);
        enqueued
    }
}

/// Whether a row with the same unique value exists.
fn is_unique_violation(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

/// Deletes jobs that have been dead for at least `dead_for`, of one queue or of all queues.
pub(super) async fn prune_dead_of(
    context: &QueueContext,
    queue: Option<&str>,
    dead_for: Duration,
) -> Result<u64, Error> {
    let arguments = (queue, time::capped(dead_for));
    let step = || {
        context.own(arguments, |conn, sql, (queue, dead_for)| {
            Box::pin(prune_dead(conn, sql, *queue, *dead_for, PRUNED_AT_ONCE))
        })
    };
    prune_in_steps(step).await
}

/// Repeats the step until it deletes fewer jobs than it may. Returns how many were deleted.
async fn prune_in_steps<F: Future<Output = Result<i64, Error>>>(step: impl Fn() -> F) -> Result<u64, Error> {
    let mut pruned = 0;
    loop {
        let deleted = step().await?;
        pruned += deleted.unsigned_abs();
        if deleted < i64::from(PRUNED_AT_ONCE) {
            return Ok(pruned);
        }
    }
}
