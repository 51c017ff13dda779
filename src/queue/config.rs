use std::time::Duration;

/// The configuration of a queue.
///
/// # Default
/// - `max_payload`: 256 KiB
/// - `max_attempts`: 10
/// - `turns`: `false`
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// The maximum size of a payload, in bytes of JSON.
    pub max_payload: usize,
    /// The number of failures after which a job is dead, unless [`Job::max_attempts`](crate::queue::Job::max_attempts) sets
    /// another one. 0 is taken as 1.
    pub max_attempts: u32,
    /// Whether the groups of the queue take turns. A group that enqueues 10,000 jobs then delays the single job of another group
    /// by no more than one round: in a round, each group that waits reserves tokens for one job, or for as many as its
    /// [`weight`](crate::queue::Job::weight) says, or for those that start within 0.1 s.
    ///
    /// A job reserves its tokens when its group has its turn, and not when it is enqueued. So
    /// [`Ticket::run_at`](crate::queue::Ticket::run_at) is the earliest time, not the time at which it will run, and an enqueue is
    /// not denied by a limit's `max_reserved`. Only jobs that are enqueued with this configuration take turns; workers need
    /// not have it.
    pub turns: bool,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { max_payload: 256 * 1024, max_attempts: 10, turns: false }
    }
}

/// The configuration of a worker.
///
/// # Default
/// - `concurrency`: 8
/// - `lease`: 30 s
/// - `poll`: 1 s
/// - `listen`: `true`
/// - `backoff`: 1 s
/// - `max_backoff`: 1 h
/// - `max_waits`: `None`, no maximum
/// - `longest_wait`: 1 day
/// - `patience`: 30 s
/// - `keep_ended`: 1 day
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The most jobs that run at once, at least 1. Each running job uses one connection of the pool. The pool's
    /// `max_connections` must be at least two more than this.
    pub concurrency: usize,
    /// The time after which the jobs of a dead worker are run by another one. At least 1 s. A live worker extends its leases
    /// three times in this time, so a job may run for longer.
    pub lease: Duration,
    /// The longest time for which an idle worker sleeps before it looks for jobs again. At least 1 ms. With
    /// [`listen`](Self::listen), new jobs that are due earlier wake it. They wait for up to this time if the server's queue of
    /// notifications is half full, if `pg_limiter.notify` is off, or if no worker slept when they were enqueued, but all do
    /// when their transaction commits.
    pub poll: Duration,
    /// Whether to LISTEN for new jobs, on one more connection, outside the pool. If LISTEN does not work (YugabyteDB, a pooler
    /// in transaction mode), the worker detects that and goes without it: new jobs that are due at once then wait for up to
    /// `poll`. If no worker of a queue listens, no transaction sends a notification.
    pub listen: bool,
    /// The pause before a failed job is retried. It doubles with each failure, up to [`max_backoff`](Self::max_backoff), and
    /// is then varied at random by up to half of itself.
    pub backoff: Duration,
    /// The longest pause before a retry, before it is varied.
    pub max_backoff: Duration,
    /// How many times a job may end in [`Finish::Wait`](crate::queue::Finish::Wait) without a failure. Each further `Wait`
    /// counts as a failure, until the job is dead; the group still waits. The waits add up over all attempts of the job: a
    /// failure does not reset them. `None`: any number of times.
    pub max_waits: Option<u32>,
    /// The longest time for which [`Finish::Wait`](crate::queue::Finish::Wait) holds a group. A longer wait is cut to this, with
    /// an event of level WARN: a third party's `Retry-After` may be wrong. [`Queue::resume_group`](crate::queue::Queue::resume_group) ends a
    /// wait earlier.
    pub longest_wait: Duration,
    /// How long a worker that is asked to stop waits for its running jobs. It then stops the rest and gives them back to the
    /// queue.
    pub patience: Duration,
    /// How long jobs that are done or cancelled are kept: for [`Queue::job`](crate::queue::Queue::job), for settling, and, if
    /// they are done, to keep their unique ids taken. Dead jobs are kept until they are requeued or deleted, with
    /// [`Queue::discard`](crate::queue::Queue::discard) or [`Queue::prune_dead`](crate::queue::Queue::prune_dead).
    pub keep_ended: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            concurrency: 8,
            lease: Duration::from_secs(30),
            poll: Duration::from_secs(1),
            listen: true,
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(3600),
            max_waits: None,
            longest_wait: Duration::from_secs(86_400),
            patience: Duration::from_secs(30),
            keep_ended: Duration::from_secs(86_400),
        }
    }
}
