use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use crate::error::InvalidJob;
use crate::queue::job_run::Ended;
use crate::queue::{Handler, Queue, WorkerConfig};
use crate::retry::longest;

/// A worker, which runs the jobs of a queue. Created by [`Queue::worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until run() is called"]
pub struct Worker<H> {
    pub(super) queue: Queue,
    pub(super) config: WorkerConfig,
    pub(super) handler: Arc<H>,
    pub(super) name: String,
}

/// Counts how the jobs ended that one worker started. A job that was started twice counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Starts after which the job was done.
    pub done: u64,
    /// Starts that failed. Their jobs will be retried.
    pub failed: u64,
    /// Starts after which the job was dead.
    pub dead: u64,
    /// Starts that ended in [`Finish::Wait`](crate::queue::Finish::Wait) and did not count as a failure.
    pub waited: u64,
    /// Starts that lost their job to another worker or their slots to another job, that got no connection, or that were still running when the worker had
    /// waited for [`WorkerConfig::patience`].
    pub lost: u64,
}

impl WorkerReport {
    pub(super) const fn count(&mut self, ended: Ended) {
        match ended {
            Ended::Done => self.done += 1,
            Ended::Failed => self.failed += 1,
            Ended::Dead => self.dead += 1,
            Ended::Waits => self.waited += 1,
            Ended::NotBegun | Ended::Lost => self.lost += 1,
        }
    }
}

impl<H: Handler> Worker<H> {
    pub(super) fn new(queue: Queue, mut config: WorkerConfig, handler: H) -> Result<Self, InvalidJob> {
        let value = u64::try_from(config.concurrency).unwrap_or(u64::MAX);
        if config.concurrency == 0 {
            return Err(InvalidJob::Config { what: "the concurrency", value, remedy: "set it to 1 or more" });
        }
        let connections = u64::from(queue.limiter().pool().options().get_max_connections());
        if value.saturating_add(2) > connections {
            return Err(InvalidJob::Config {
                what: "the concurrency",
                value,
                remedy: "each running job uses a connection: give the pool two more than that (max_connections), or lower \
                         the concurrency",
            });
        }
        if config.lease < Duration::from_secs(1) {
            let value = u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX);
            return Err(InvalidJob::Config { what: "the lease in ms", value, remedy: "set it to 1000 or more" });
        }
        if config.poll < Duration::from_millis(1) {
            return Err(InvalidJob::Config { what: "poll in ms", value: 0, remedy: "set it to 1 or more" });
        }
        (config.lease, config.poll) = (longest(config.lease), longest(config.poll));
        let name = format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(std::process::id()));
        Ok(Self { queue, config, handler: Arc::new(handler), name })
    }
}

impl Queue {
    /// Returns a worker that runs the jobs of this queue: see [`Worker::run`].
    ///
    /// # Errors
    /// [`InvalidJob::Config`] if the concurrency is 0, if the pool's `max_connections` is less than the concurrency plus two,
    /// or if the lease or the poll interval is too short: see [`WorkerConfig`].
    pub fn worker<H: Handler>(&self, config: WorkerConfig, handler: H) -> Result<Worker<H>, InvalidJob> {
        Worker::new(self.clone(), config, handler)
    }
}
