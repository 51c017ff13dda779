//! Sets the gauges of a queue: the number of jobs by state, and how late the queue is.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::warn;

use crate::observability;
use crate::queue::Queue;
use crate::sql::queue::gauges;

/// The interval between two readings. It is part of the documented interface of the metrics.
const EVERY: Duration = Duration::from_secs(15);

/// The queues that this process sets gauges for. One worker reads each queue, even if several workers run it.
static READ: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn read_queues() -> MutexGuard<'static, BTreeSet<String>> {
    READ.lock().unwrap_or_else(PoisonError::into_inner) // No panic leaves it half-changed.
}

/// The exclusive right in this process to set the gauges of a queue. Dropping it sets them to NaN.
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
        match queue.context.look(queue.name(), |conn, sql, name| Box::pin(gauges(conn, sql, name))).await {
            Ok(now) => {
                let jobs = [
                    ("scheduled", now.scheduled),
                    ("available", now.available),
                    ("running", now.running),
                    ("dead", now.dead),
                ];
                let blocked = now.blocked as f64;
                let overdue = Duration::from_micros(now.lag.max(0).unsigned_abs());
                observability::queue_is(
                    &queue.name,
                    jobs.map(|(state, jobs)| (state, jobs as f64)),
                    overdue.as_secs_f64(),
                    blocked,
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
        observability::queue_is(&self.queue.name, jobs, f64::NAN, f64::NAN);
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.set_unknown();
        read_queues().remove(&self.place);
    }
}

/// Sets the gauges at regular intervals, unless another worker of this process does.
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
