//! Reads what the tabs show.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use crate::live::{GroupView, Live, QueueView, Seen, pause};
use crate::top::app::Filters;

/// The groups of so many queues are read.
pub(super) const QUEUES: usize = 20;
/// Keys of each limit that are looked up by their prefix.
const LIKE: u32 = 5;

/// The results of one round of reading.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) seen: Seen,
    pub(super) queues: Vec<QueueView>,
    /// The groups of the first queues that match the filter.
    pub(super) groups: Vec<GroupView>,
    /// Why the queues could not be read.
    pub(super) queue_error: Option<String>,
}

impl Data {
    pub(super) async fn read(live: &Live, filters: &Filters) -> Self {
        let prefix = filters.key();
        if !prefix.is_empty() {
            // The sampler then also follows keys that are neither busy nor empty. A failure shows in the sample, too.
            for (name, key) in live.keys_like(prefix, LIKE).await.unwrap_or_default() {
                live.watch_key(&name, &key).await;
            }
        }
        let mut data = Self { seen: live.sample().await, ..Self::default() };
        data.queue_error = data.read_queues(live, filters).await.err().map(|error| error.to_string());
        data
    }

    async fn read_queues(&mut self, live: &Live, filters: &Filters) -> Result<(), crate::error::CliError> {
        self.queues = live.queues().await?;
        self.queues.retain(|queue| queue.queue.contains(filters.queue()));
        for queue in self.queues.iter().take(QUEUES) {
            self.groups.extend(live.groups(&queue.queue, None).await?);
        }
        Ok(())
    }
}

/// Reads at this interval, until the receiver is dropped.
pub(super) async fn keep_reading(
    live: Live,
    interval: Duration,
    mut filters: watch::Receiver<Filters>,
    data: mpsc::Sender<Data>,
) {
    loop {
        let begin = Instant::now();
        let wanted = filters.borrow_and_update().clone();
        let read = Data::read(&live, &wanted).await;
        let pause = pause(interval, begin, read.seen.error.is_some());
        if data.send(read).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Other filters need other data.
            changed = filters.changed() => if changed.is_err() { return },
        }
    }
}
