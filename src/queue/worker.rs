use std::future::{Future, poll_fn};
use std::hash::{BuildHasher, RandomState};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::error::{Error, InvalidJob};
use crate::queue::bell::Bell;
use crate::queue::crew::Crew;
use crate::queue::run::Ended;
use crate::queue::{Handler, Queue, WorkerConfig};

/// Runs the jobs of a queue, from [`Queue::worker`].
#[derive(Debug)]
#[must_use = "a worker does nothing until it runs"]
pub struct Worker<H> {
    pub(super) queue: Queue,
    pub(super) config: WorkerConfig,
    pub(super) handler: Arc<H>,
    pub(super) name: String,
}

/// What a worker has done, counted by starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Jobs that were done.
    pub done: u64,
    /// Starts that failed and are tried again.
    pub failed: u64,
    /// Jobs that are dead now.
    pub dead: u64,
    /// Starts that ended because the third party said to wait.
    pub waited: u64,
    /// Jobs that were lost to other workers, that could not begin for want of a connection, or that were given back when
    /// this one stopped.
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
            return Err(InvalidJob::Config {
                what: "the concurrency",
                value,
                remedy: "a worker that runs nothing at once never runs anything: make it 1 or more",
            });
        }
        let connections = u64::from(queue.limiter().pool().options().get_max_connections());
        if value.saturating_add(2) > connections {
            return Err(InvalidJob::Config {
                what: "the concurrency",
                value,
                remedy: "each job has a connection while it runs: give the pool two more than that (max_connections), or \
                         lower the concurrency",
            });
        }
        if config.lease < Duration::from_secs(1) {
            let value = u64::try_from(config.lease.as_millis()).unwrap_or(u64::MAX);
            return Err(InvalidJob::Config { what: "the lease in ms", value, remedy: "make it 1 s or more" });
        }
        if config.poll < Duration::from_millis(1) {
            return Err(InvalidJob::Config { what: "poll in ms", value: 0, remedy: "make it 1 ms or more" });
        }
        let name = format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(std::process::id()));
        Ok(Self { queue, config, handler: Arc::new(handler), name })
    }

    /// Runs jobs until `stop` is ready; then lets those that run come to their end, for as long as its patience, and gives
    /// the others back.
    ///
    /// A worker starts what is due, in order, as many at once as its concurrency. It sleeps until the next job is due, is
    /// woken for new ones, and looks at the queue at least once in its `poll`. Any number of workers in any number of
    /// processes share a queue.
    ///
    /// A database that cannot be reached is tried again, for ever.
    ///
    /// # Errors
    /// [`Error::SchemaMissing`], [`Error::Database`] and [`Error::Closed`]: what does not pass by itself. Jobs that run then
    /// come to their end first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the jobs that run; their transactions are rolled back, and they come back when their leases
    /// run out. Use `stop`.
    ///
    /// # In a transaction
    /// Claims have their own; each job has one, which its handler gets and which commits with the job's completion.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<WorkerReport, Error> {
        let mut crew = Crew::new(&self);
        let limiter = self.queue.limiter();
        // Behind a pooler, the session that listens would be anybody's.
        let bell = Bell::new(limiter.pool(), self.queue.name(), self.config.listen && limiter.names().are_given());
        let mut stop = pin!(stop);
        let failure = loop {
            if let Err(error) = crew.move_on().await {
                break Some(error);
            }
            if wait(&mut crew, &bell, stop.as_mut()).await {
                break None;
            }
        };
        drop(bell);
        let report = crew.wind_up().await;
        failure.map_or(Ok(report), Err)
    }
}

/// Waits until there is something to do: a job has ended, there are new ones, or it is time to look. Whether the worker is
/// to stop.
async fn wait<H: Handler>(crew: &mut Crew<'_, H>, bell: &Bell, mut stop: Pin<&mut impl Future<Output = ()>>) -> bool {
    let look_at = crew.next_move();
    let mut rung = pin!(bell.rung());
    let mut time = pin!(tokio::time::sleep_until(look_at.into()));
    poll_fn(|cx| {
        if stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        if crew.poll_ended(cx).is_ready() {
            return Poll::Ready(false);
        }
        if rung.as_mut().poll(cx).is_ready() {
            crew.look_now();
            return Poll::Ready(false);
        }
        time.as_mut().poll(cx).map(|()| false)
    })
    .await
}
