use std::time::Duration;

/// What a queue takes.
///
/// # Default
/// - `max_payload`: 256 KiB
/// - `max_attempts`: 10
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueueConfig {
    /// The largest payload, in bytes of JSON.
    pub max_payload: usize,
    /// How often a job is tried before it is dead, unless it says otherwise. 0 is taken as 1.
    pub max_attempts: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { max_payload: 256 * 1024, max_attempts: 10 }
    }
}

/// How a worker works.
///
/// # Default
/// - `concurrency`: 8
/// - `lease`: 30 s
/// - `poll`: 1 s
/// - `listen`: `true`
/// - `backoff`: 1 s
/// - `max_backoff`: 1 h
/// - `max_waits`: `None`, no maximum
/// - `patience`: 30 s
/// - `keep_ended`: 1 day
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// The most jobs that run at once. Each has a connection of the pool while it runs; the pool needs two more.
    pub concurrency: usize,
    /// How long a job belongs to this worker without a sign of life. While the worker lives it is extended, so this is not
    /// the longest time that a job may take, but the time after which that of a dead worker comes back. At least 1 s.
    pub lease: Duration,
    /// The longest time between two looks at the queue. A worker that knows of nothing to come looks so often; it is woken
    /// for jobs that are due before. At least 1 ms.
    pub poll: Duration,
    /// Whether to LISTEN for jobs, over a connection of its own. Where that does not work (YugabyteDB, a pooler in
    /// transaction mode), the worker notices and does without: jobs that are due at once then wait for up to `poll`.
    pub listen: bool,
    /// The pause before a job that failed is tried again. It doubles with each failure, and is varied by up to a half of
    /// itself.
    pub backoff: Duration,
    /// The longest such pause.
    pub max_backoff: Duration,
    /// How often a job may end in [`Finish::Wait`](crate::queue::Finish::Wait). From then on each `Wait` counts as a failure,
    /// so that the job is dead after `max_attempts` more; the group waits all the same. `None`: any number.
    pub max_waits: Option<u32>,
    /// When the worker is to stop, how long it waits for jobs that run. The others it gives back.
    pub patience: Duration,
    /// How long jobs that are done or cancelled are kept, for [`Queue::job`](crate::queue::Queue::job), for settling, and
    /// for their unique ids. Dead ones are kept until they are requeued or removed: [`Queue::discard`](crate::queue::Queue::discard),
    /// [`Queue::prune_dead`](crate::queue::Queue::prune_dead).
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
            patience: Duration::from_secs(30),
            keep_ended: Duration::from_secs(86_400),
        }
    }
}
