//! The state that all pages share; how keys are shown and named in links, as they are or as hashes; and the changes just made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Redirect;
use maud::{Markup, html};

use crate::operate::live::{Health, Live};
use crate::operate::ui::access::Access;
use crate::{HiddenKeys, Result, Running};
use pg_limiter::{KeySecret, Limiter};

/// How often samples are taken, and pages renewed.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

pub(super) type Shared = State<Arc<App>>;

pub(super) struct App {
    pub(super) live: Live,
    pub(super) access: Access,
    pub(super) keys: Keys,
    /// Makes changes, on connections of its own. `None`: nothing can be changed.
    pub(super) changes: Option<Limiter>,
    pub(super) done: Done,
    pub(super) key_secret: Option<KeySecret>,
    pub(super) running: Running,
    /// That of the last simulation, until it is closed.
    #[cfg(feature = "study")]
    pub(super) sandbox: Arc<tokio::sync::Mutex<Option<crate::study::replay::Sandbox>>>,
    pub(super) place: String,
    pub(super) health: tokio::sync::Mutex<Option<(Health, Instant)>>,
}

/// The most keys that the page remembers by their hashes, so that links with a hash work.
const REMEMBERED: usize = 200_000;

pub(super) struct Keys {
    /// `None`: keys are shown.
    hashes: Option<HiddenKeys>,
    known: Mutex<HashMap<String, String>>,
}

impl Keys {
    pub(super) fn new(hide: bool) -> Result<Self> {
        Ok(Self { hashes: hide.then(HiddenKeys::new).transpose()?, known: Mutex::default() })
    }

    pub(super) const fn are_hidden(&self) -> bool {
        self.hashes.is_some()
    }

    /// The key, or its hash: to show it, and to name it in links and forms.
    pub(super) fn shown(&self, key: &str) -> String {
        let Some(hashes) = &self.hashes else { return key.to_owned() };
        let hash = hashes.hash(key);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.entry(hash.clone()).or_insert_with(|| key.to_owned());
        hash
    }

    /// The key that was shown so. The empty key, which all callers share, has no hash.
    pub(super) fn named(&self, shown: &str) -> Option<String> {
        if self.hashes.is_none() || shown.is_empty() {
            return Some(shown.to_owned());
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(shown).cloned()
    }
}

const SHOWN_FOR: Duration = Duration::from_secs(60);

/// The last change of each page by the URL of the page, if it was just made: when, what a link calls it, and what the page says. A
/// link cannot show a change that was not made, or that another one has followed.
#[derive(Default)]
pub(super) struct Done(Mutex<HashMap<String, (Instant, &'static str, &'static str)>>);

impl Done {
    /// Records a change of what this page shows, and leads back to it.
    pub(super) fn add(&self, url: &str, change: &'static str, says: &'static str) -> Redirect {
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.retain(|_, (at, ..)| at.elapsed() < SHOWN_FOR);
        changes.insert(url.to_owned(), (Instant::now(), change, says));
        Redirect::to(&format!("{url}&done={change}"))
    }

    /// The change that a link to this page names, if it was made.
    pub(super) fn notice(&self, url: &str, change: &str) -> Markup {
        let changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = changes.get(url).filter(|(at, made, _)| at.elapsed() < SHOWN_FOR && *made == change);
        html! { @if let Some((.., says)) = made { div class="notice good" role="status" { p class="message" { (says) } } } }
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
