//! The state that all pages share.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::error::CliError;
use crate::live::{Health, Live};
use crate::ui::access::Access;
use crate::ui::actions::{Changes, Done};
use crate::ui::keys::Keys;
use crate::ui::what_if::Simulator;
use pg_limiter::KeySecret;

/// How often samples are taken, and pages renewed.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
/// The database is examined again after this time.
const HEALTH_FOR: Duration = Duration::from_secs(15);

pub(super) struct App {
    pub(super) live: Live,
    pub(super) access: Access,
    pub(super) keys: Keys,
    /// `None`: nothing can be changed.
    pub(super) changes: Option<Changes>,
    pub(super) done: Done,
    /// The secret with which the application hashes its keys.
    pub(super) key_secret: Option<KeySecret>,
    pub(super) simulator: Simulator,
    /// The database, for the heading.
    pub(super) place: String,
    pub(super) health: Mutex<Option<(Instant, Arc<Health>)>>,
}

impl App {
    /// Doctor's findings, at most some seconds old.
    pub(super) async fn health(&self) -> Result<Arc<Health>, CliError> {
        let mut kept = self.health.lock().await;
        if let Some((at, health)) = &*kept
            && at.elapsed() < HEALTH_FOR
        {
            return Ok(Arc::clone(health));
        }
        let health = Arc::new(self.live.health().await?);
        *kept = Some((Instant::now(), Arc::clone(&health)));
        Ok(health)
    }

    /// The keys under which a limit may store a key: the key, and its hash if the application hashes keys.
    pub(super) fn stored(&self, limit: &str, key: &str) -> Option<String> {
        self.key_secret.as_ref().map(|secret| secret.stored_key(limit, key))
    }
}
