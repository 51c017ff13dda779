//! LISTENs for notifications: of new jobs, and of changed limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgPool};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::error::refuses_settings;
use crate::sql::own_options;
use crate::transact::session::open as open_session;

/// The pause between two attempts to listen.
const PAUSE: Duration = Duration::from_secs(5);

/// A setting that no other session has. A session that keeps it is not shared through a pooler. Behind a pooler in transaction
/// mode, LISTEN would seem to work, receive nothing, and stay active in a session that other clients use.
const OWN: (&str, &str) = ("lock_timeout", "86399999");

/// Receives the notifications of one channel, until it is dropped.
pub(crate) struct Notifications {
    heard: Arc<Heard>,
    listening: Option<AbortHandle>,
}

#[derive(Default)]
struct Heard {
    received: Notify,
    /// Whether notifications arrive.
    hears: AtomicBool,
}

impl Notifications {
    /// `payload`: only notifications with it count. Without `listen`, it receives none.
    pub(crate) fn new(pool: &PgPool, channel: &'static str, payload: Option<&str>, listen: bool) -> Self {
        let heard = Arc::<Heard>::default();
        let listening = listen.then(|| {
            let mut closed = pool.close_event();
            let hearing = hear(pool.clone(), channel, payload.map(str::to_owned), Arc::clone(&heard));
            tokio::spawn(async move { closed.do_until(hearing).await.unwrap_or_default() }).abort_handle()
        });
        Self { heard, listening }
    }

    /// Whether notifications arrive.
    pub(crate) fn hears(&self) -> bool {
        self.heard.hears.load(Ordering::Relaxed)
    }

    /// Waits for a notification. After the connection was lost there may have been one, so that counts as one, too.
    pub(crate) async fn received(&self) {
        self.heard.received.notified().await;
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

/// Listens until the pool is closed. If notifications are missed meanwhile, regular polls find what they were about.
async fn hear(pool: PgPool, channel: &'static str, payload: Option<String>, heard: Arc<Heard>) {
    // Not a connection of the caller's pool: LISTEN keeps it for good.
    let own = PgPoolOptions::new().max_connections(1).connect_lazy_with(own_options(&pool));
    while !pool.is_closed() {
        let Err(error) = listen(&own, channel, payload.as_deref(), &heard).await;
        heard.hears.store(false, Ordering::Relaxed);
        debug!(%error, channel, payload, "cannot listen for notifications; only polling");
        if refuses_settings(&error) {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen(
    pool: &PgPool,
    channel: &str,
    payload: Option<&str>,
    heard: &Heard,
) -> Result<std::convert::Infallible, sqlx::Error> {
    // It only shows that a session keeps its settings.
    let _ = open_session(pool, &[OWN]).await?.close().await;
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(channel).await?;
    heard.hears.store(true, Ordering::Relaxed);
    heard.received.notify_one(); // There may have been one before. A worker counts as asleep from its next claim on.
    loop {
        match listener.try_recv().await? {
            Some(notification) if payload.is_some_and(|payload| notification.payload() != payload) => {}
            _ => heard.received.notify_one(),
        }
    }
}
