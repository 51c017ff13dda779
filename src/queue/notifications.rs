//! LISTENs for notifications of new jobs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgPool};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::error::refuses_settings;
use crate::transact::{open_session, own_options};

const CHANNEL: &str = "rate_limit_jobs";

/// The pause between two attempts to listen.
const PAUSE: Duration = Duration::from_secs(5);

/// A setting that no other session has. A session that keeps it is not shared through a pooler. Behind a pooler in transaction
/// mode, LISTEN would seem to work, receive nothing, and stay active in a session that other clients use.
const OWN: (&str, &str) = ("lock_timeout", "86399999");

/// Receives the notifications of one queue, until it is dropped.
pub(super) struct Notifications {
    received: Arc<Notify>,
    hears: Arc<AtomicBool>,
    listening: Option<AbortHandle>,
}

impl Notifications {
    pub(super) fn new(pool: &PgPool, queue: &str, listen: bool) -> Self {
        let (received, hears) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let listening = listen.then(|| {
            let hearing = hear(pool.clone(), queue.to_owned(), Arc::clone(&received), Arc::clone(&hears));
            tokio::spawn(hearing).abort_handle()
        });
        Self { received, hears, listening }
    }

    /// Whether notifications arrive.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    pub(super) async fn received(&self) {
        self.received.notified().await;
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

/// Listens until the pool is closed. If notifications are missed meanwhile, the worker's regular polls find the jobs.
async fn hear(pool: PgPool, queue: String, received: Arc<Notify>, hears: Arc<AtomicBool>) {
    // Not a connection of the caller's pool: LISTEN keeps it for good.
    let own = PgPoolOptions::new().max_connections(1).connect_lazy_with(own_options(&pool));
    while !pool.is_closed() {
        let Err(error) = listen(&own, &queue, &received, &hears).await;
        hears.store(false, Ordering::Relaxed);
        debug!(%error, queue, "cannot listen for jobs; polling for them instead");
        if refuses_settings(&error) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen(
    pool: &PgPool,
    queue: &str,
    received: &Notify,
    hears: &AtomicBool,
) -> Result<std::convert::Infallible, sqlx::Error> {
    // It only shows that a session keeps its settings.
    let _ = open_session(pool, &[OWN]).await?.close().await;
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    hears.store(true, Ordering::Relaxed);
    received.notify_one(); // The next claim counts the worker as asleep, and finds jobs that were enqueued meanwhile.
    loop {
        match listener.try_recv().await? {
            Some(notification) if notification.payload() != queue => {}
            // A notification for this queue, or the connection was lost and notifications may have been missed.
            _ => received.notify_one(),
        }
    }
}
