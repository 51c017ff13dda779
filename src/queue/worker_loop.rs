//! The loop of a worker.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use crate::clock::Advances;
use crate::error::Error;
use crate::queue::running_jobs::RunningJobs;
use crate::queue::{Handler, Worker, WorkerReport};
use crate::transact::Notifications;

/// The channel of notifications of new jobs, with the queue as payload.
const CHANNEL: &str = "rate_limit_jobs";

impl<H: Handler> Worker<H> {
    /// Runs jobs until `stop` completes. The worker then starts no more jobs, waits for its running jobs for up to
    /// [`WorkerConfig::patience`], gives the rest back to the queue, and returns a report.
    ///
    /// A worker starts due jobs in order, up to [`WorkerConfig::concurrency`] at once. It sleeps until the next job is due,
    /// and looks at the queue at least once every [`WorkerConfig::poll`]. New jobs wake it if it can
    /// [`listen`](crate::queue::WorkerConfig::listen). Any number of workers, in any number of processes, can share a queue.
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
    ///
    /// [`WorkerConfig::patience`]: crate::queue::WorkerConfig::patience
    /// [`WorkerConfig::concurrency`]: crate::queue::WorkerConfig::concurrency
    /// [`WorkerConfig::poll`]: crate::queue::WorkerConfig::poll
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<WorkerReport, Error> {
        let mut jobs = RunningJobs::new(&self);
        let limiter = self.queue.limiter();
        // Behind a pooler, other clients would share the session that listens.
        let listen = self.config.listen && limiter.named_statements().are_on();
        let notifications = Notifications::new(limiter.pool(), CHANNEL, Some(self.queue.name()), listen);
        let mut advances = limiter.clock().advances();
        let mut stop = pin!(stop);
        let failure = loop {
            if limiter.pool().is_closed() {
                break Some(Error::Closed);
            }
            if let Err(error) = jobs.move_on(notifications.hears()).await {
                break Some(error);
            }
            let mut closed = limiter.pool().close_event();
            let waiting = wait(&mut jobs, &notifications, &mut advances, stop.as_mut());
            if closed.do_until(waiting).await.unwrap_or(false) {
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
    advances: &mut Advances,
    mut stop: Pin<&mut impl Future<Output = ()>>,
) -> bool {
    let look_at = jobs.next_move();
    let mut received = pin!(notifications.received());
    let mut advanced = pin!(advances.next());
    let mut time = pin!(tokio::time::sleep_until(look_at.into()));
    poll_fn(|cx| {
        if stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        if jobs.poll_ended(cx).is_ready() {
            return Poll::Ready(false);
        }
        if received.as_mut().poll(cx).is_ready() || advanced.as_mut().poll(cx).is_ready() {
            jobs.look_now();
            return Poll::Ready(false);
        }
        time.as_mut().poll(cx).map(|()| false)
    })
    .await
}
