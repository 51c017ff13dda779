//! How many jobs there are in which state, and how late the queue is, for the recorder of metrics.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::observability;
use crate::queue::Queue;
use crate::sql::queue::gauges;

/// Between two readings. It is part of the interface of the metrics.
const EVERY: Duration = Duration::from_secs(15);

/// The queues that are read in this process: one worker reads each, however many there are.
static READ: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn read_queues() -> MutexGuard<'static, BTreeSet<String>> {
    READ.lock().unwrap_or_else(PoisonError::into_inner) // Nothing in it is ever half-done.
}

/// The right to set the gauges of a queue. When it is dropped, they become NaN.
struct Reader<'q> {
    queue: &'q Queue,
    place: String,
}

impl<'q> Reader<'q> {
    fn take(queue: &'q Queue) -> Option<Self> {
        let limiter = queue.limiter();
        let options = limiter.pool().connect_options();
        let place = format!(
            "{:?} {} {} {:?} {} {}",
            options.get_socket(),
            options.get_host(),
            options.get_port(),
            options.get_database(),
            limiter.schema(),
            queue.name(),
        );
        let is_first = read_queues().insert(place.clone());
        is_first.then(|| Self { queue, place })
    }

    async fn read(&self) {
        let queue = self.queue;
        match queue.site.own(queue.name(), |conn, sql, name| Box::pin(gauges(conn, sql, name))).await {
            Ok(now) => {
                let jobs = [
                    ("scheduled", now.scheduled),
                    ("available", now.available),
                    ("running", now.running),
                    ("dead", now.dead),
                ];
                let overdue = Duration::from_micros(now.lag.max(0).unsigned_abs());
                observability::queue_is(
                    &queue.name,
                    jobs.map(|(state, jobs)| (state, jobs as f64)),
                    overdue.as_secs_f64(),
                );
            }
            Err(error) => {
                warn!(%error, queue = queue.name(), "cannot read the gauges of the queue; trying again");
                self.set_unknown();
            }
        }
    }

    fn set_unknown(&self) {
        let jobs = ["scheduled", "available", "running", "dead"].map(|state| (state, f64::NAN));
        observability::queue_is(&self.queue.name, jobs, f64::NAN);
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.set_unknown();
        read_queues().remove(&self.place);
    }
}

/// Sets the gauges from time to time, unless another worker of this process does.
pub(super) async fn watch(queue: Queue) {
    loop {
        if let Some(reader) = Reader::take(&queue) {
            loop {
                reader.read().await;
                tokio::time::sleep(EVERY).await;
            }
        }
        tokio::time::sleep(EVERY).await;
    }
}
