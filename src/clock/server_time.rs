//! Without the feature `testing`, the clock is the time itself, and has no state.

use std::future::Future;
use std::time::Instant;

use sqlx::PgPool;

use super::{Advances, LocalClock, PinnedClock};

impl LocalClock {
    pub(crate) fn of(_: &PgPool, _: &str) -> Self {
        Self {}
    }

    pub(crate) const fn pinned(&self) -> PinnedClock {
        PinnedClock {}
    }

    /// Never sleeps for less: the timer's steps are rounded up.
    pub(crate) async fn sleep_until(&self, moment: Instant) {
        tokio::time::sleep_until(moment.into()).await;
    }

    /// Returns `None` if the moment comes first.
    pub(crate) async fn timeout_at<F: Future + Send>(&self, moment: Instant, future: F) -> Option<F::Output> {
        tokio::time::timeout_at(moment.into(), future).await.ok()
    }

    pub(crate) const fn advances(&self) -> Advances {
        Advances {}
    }
}

impl PinnedClock {
    pub(crate) fn now(self) -> Instant {
        Instant::now()
    }
}

impl Advances {
    /// Waits for the next advance.
    pub(crate) async fn next(&mut self) {
        std::future::pending().await
    }
}
