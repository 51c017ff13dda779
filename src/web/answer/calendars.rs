//! The present windows of calendar windows. Only the database knows them. The layer reads each of them once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limit::{Kind, Limit};
use crate::limiter::Limiter;
use crate::sql::{PresentWindow, ReadWindow};

#[derive(Debug, Default)]
pub(super) struct Calendars {
    known: Mutex<Vec<Known>>,
    /// Held while the database is asked, so that one request asks for all. The time at which it did not answer last.
    asking: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct Known {
    limit: Limit,
    /// `None` if the database did not answer.
    window: Option<PresentWindow>,
    since: Instant,
    until: Instant,
}

/// The time after which the database is asked again if it did not answer.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// The largest number of known windows.
const MOST: usize = 1000;

/// The windows of a calendar window at a time.
pub(super) struct CalendarNow {
    /// The length of the windows that fill an empty bucket.
    pub(super) length: Duration,
    /// The time until the present window ends.
    pub(super) ends_in: Duration,
}

impl Calendars {
    /// Asks for the windows of these limits, unless they are known.
    pub(super) async fn learn(&self, limiter: &Limiter, limits: &[Limit]) {
        for limit in limits.iter().filter(|limit| limit.kind() == Kind::CalendarWindow) {
            if self.is_known(limit, limiter.clock().now()) {
                continue;
            }
            let began = Instant::now();
            let mut failed_at = self.asking.lock().await;
            let since = limiter.clock().now();
            if self.is_known(limit, since) {
                continue;
            }
            // Requests that wait while the database does not answer fail together: each would wait for a deadline of its own.
            let window = if failed_at.is_some_and(|failed_at| failed_at >= began) {
                None
            } else {
                let asked = limiter.own_transaction(ReadWindow(*limit)).await;
                if let Err(error) = &asked {
                    *failed_at = Some(Instant::now());
                    tracing::warn!(%error, "the window of a calendar limit is not known: left out of RateLimit-Policy");
                }
                asked.ok()
            };
            let length = window.map_or(AFTER_FAILURE, |window| window.ends_in);
            let until = since.checked_add(length).unwrap_or(since + AFTER_FAILURE);
            let mut known = self.lock();
            known.retain(|known| known.until > since && known.limit != *limit);
            if known.len() >= MOST {
                known.remove(0); // The oldest.
            }
            known.push(Known { limit: *limit, window, since, until });
        }
    }

    /// The windows of this limit; `None` if they are not known.
    pub(super) fn at(&self, now: Instant, limit: &Limit) -> Option<CalendarNow> {
        let known = self.lock();
        let known = known.iter().find(|known| known.limit == *limit && known.until > now)?;
        let PresentWindow { length, ends_in } = known.window?;
        Some(CalendarNow { length, ends_in: ends_in.saturating_sub(now.saturating_duration_since(known.since)) })
    }

    fn is_known(&self, limit: &Limit, now: Instant) -> bool {
        self.lock().iter().any(|known| known.limit == *limit && known.until > now)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
