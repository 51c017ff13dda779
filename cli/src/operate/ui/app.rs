//! The state that all pages share, and the changes just made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Redirect;
use maud::{Markup, html};

use crate::operate::live::{Health, Live};
use crate::operate::ui::access::Access;
use crate::{Keys, Running};
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
