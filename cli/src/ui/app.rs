//! The state that all pages share, and how keys are shown and named in links: as they are, or as hashes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::CliError;
use crate::key_secret::HiddenKeys;
use crate::live::{Health, Live};
use crate::ui::access::Access;
use crate::ui::actions::{Changes, Done};
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
    pub(super) health: tokio::sync::Mutex<Option<(Instant, Arc<Health>)>>,
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

/// The most keys that the page remembers by their hashes, so that links with a hash work.
const REMEMBERED: usize = 200_000;

#[derive(Debug)]
pub(super) struct Keys {
    hidden: Option<Hidden>,
}

#[derive(Debug)]
struct Hidden {
    hashes: HiddenKeys,
    /// Keys by their hashes.
    known: Mutex<HashMap<String, String>>,
}

impl Keys {
    pub(super) fn new(hide: bool) -> Result<Self, CliError> {
        let hidden = || Ok::<_, CliError>(Hidden { hashes: HiddenKeys::new()?, known: Mutex::default() });
        Ok(Self { hidden: hide.then(hidden).transpose()? })
    }

    pub(super) const fn are_hidden(&self) -> bool {
        self.hidden.is_some()
    }

    /// The key, or its hash: to show it, and to name it in links and forms. The empty key, which all callers share, stays.
    pub(super) fn shown(&self, key: &str) -> String {
        let Some(Hidden { hashes, known }) = &self.hidden else { return key.to_owned() };
        if key.is_empty() {
            return String::new();
        }
        let hash = hashes.hash(key);
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.entry(hash.clone()).or_insert_with(|| key.to_owned());
        hash
    }

    /// The key that a link or a form names.
    pub(super) fn named(&self, shown: &str) -> Option<String> {
        match &self.hidden {
            None => Some(shown.to_owned()),
            Some(_) if shown.is_empty() => Some(String::new()),
            Some(Hidden { known, .. }) => known.lock().unwrap_or_else(PoisonError::into_inner).get(shown).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_name_keys_that_were_shown_in_this_run_only() {
        let [keys, other] = [Keys::new(true).unwrap(), Keys::new(true).unwrap()];
        let hash = keys.shown("alice@example.com");
        assert_ne!(hash, other.shown("alice@example.com"));
        assert_eq!((keys.named(&hash).as_deref(), keys.named("alice@example.com")), (Some("alice@example.com"), None));
        assert_eq!((keys.shown(""), keys.named("")), (String::new(), Some(String::new())));
        let plain = Keys::new(false).unwrap();
        assert_eq!((plain.shown("a"), plain.named("a")), ("a".to_owned(), Some("a".to_owned())));
    }
}
