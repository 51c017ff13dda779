use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::error::{Error, InvalidJob};
use crate::queue::job_run::Ended;
use crate::queue::notifications::Notifications;
use crate::queue::running_jobs::RunningJobs;
use crate::queue::{Handler, Queue, WorkerConfig};

/// A worker, which runs the jobs of a queue. Created by [`Queue::worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until run() is called"]
pub struct Worker<H> {
    pub(super) queue: Queue,
    pub(super) config: WorkerConfig,
    pub(super) handler: Arc<H>,
    pub(super) name: String,
}

/// How the starts of jobs by one worker ended, counted. A job that was started twice counts twice.
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
    /// Starts that lost their job to another worker, that got no connection, or that were still running when the worker had
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
    pub(super) fn new(queue: Queue, config: WorkerConfig, handler: H) -> Result<Self, InvalidJob> {
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
        let name = format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(std::process::id()));
        Ok(Self { queue, config, handler: Arc::new(handler), name })
    }

    /// Runs jobs until `stop` completes. The worker then starts no more jobs, waits for its running jobs for up to
    /// [`WorkerConfig::patience`], gives the rest back to the queue, and returns a report.
    ///
    /// A worker starts due jobs in order, up to [`WorkerConfig::concurrency`] at once. It sleeps until the next job is due,
    /// and looks at the queue at least once every [`WorkerConfig::poll`]. New jobs wake it if it can
    /// [`listen`](WorkerConfig::listen). Any number of workers, in any number of processes, can share a queue.
    ///
    /// While the database cannot be reached, the worker retries forever.
    ///
    /// # Errors
    /// Errors that a retry does not cure, such as [`Error::SchemaMissing`], [`Error::Database`] and [`Error::Closed`]. The
    /// worker first waits for its running jobs, as after `stop`.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the running jobs and rolls back their transactions. These jobs run again once their leases
    /// expire. To stop without this delay, use `stop`.
    ///
    /// # In a transaction
    /// The worker claims jobs in transactions of its own. Each job runs in one more transaction, which its handler gets, and
    /// which commits together with the job's completion.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<WorkerReport, Error> {
        let mut jobs = RunningJobs::new(&self);
        let limiter = self.queue.limiter();
        // Behind a pooler, other clients would share the session that listens.
        let notifications =
            Notifications::new(limiter.pool(), self.queue.name(), self.config.listen && limiter.names().are_given());
        let mut stop = pin!(stop);
        let failure = loop {
            if let Err(error) = jobs.move_on().await {
                break Some(error);
            }
            if wait(&mut jobs, &notifications, stop.as_mut()).await {
                break None;
            }
        };
        drop(notifications);
        let report = jobs.wind_up().await;
        failure.map_or(Ok(report), Err)
    }
}

/// Waits until a job ends, a notification arrives, or it is time to look for jobs. Returns `true` if the worker is to stop.
async fn wait<H: Handler>(
    jobs: &mut RunningJobs<'_, H>,
    notifications: &Notifications,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> bool {
    let look_at = jobs.next_move();
    let mut received = pin!(notifications.received());
    let mut time = pin!(tokio::time::sleep_until(look_at.into()));
    poll_fn(|cx| {
        if stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        if jobs.poll_ended(cx).is_ready() {
            return Poll::Ready(false);
        }
        if received.as_mut().poll(cx).is_ready() {
            jobs.look_now();
            return Poll::Ready(false);
        }
        time.as_mut().poll(cx).map(|()| false)
    })
    .await
}
