//! When windows end. Only the database knows its clock and its time zones, so the layer asks it: for its clock once a minute, and
//! for each calendar window once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::limit::{Calendar, Kind, Limit};
use crate::limiter::Limiter;
use crate::sql::ReadWindow;
use crate::web::answer::calendars::{CalendarNow, Calendars};

#[derive(Debug, Default)]
pub(in crate::web) struct Windows {
    calendars: Calendars,
    clock: Arc<DatabaseClock>,
}

impl Windows {
    /// Learns what is needed to say when the windows of these limits end, unless it is known.
    pub(in crate::web) async fn learn(&self, limiter: &Limiter, limits: &[Limit]) {
        self.calendars.learn(limiter, limits).await;
        if limits.iter().any(|limit| matches!(limit.kind(), Kind::FixedWindow | Kind::SlidingWindow)) {
            self.clock.learn(limiter).await;
        }
    }

    pub(super) fn calendar(&self, now: Instant, limit: &Limit) -> Option<CalendarNow> {
        self.calendars.at(now, limit)
    }

    /// The time until the present window of a fixed window ends, or the present sub-interval of a sliding window. `None` if the
    /// database's clock is not known.
    pub(super) fn ends_in(&self, now: Instant, limit: &Limit, name: &str, stored_key: &str) -> Option<Duration> {
        let now = self.clock.at(now)?;
        let period = limit.period_micros();
        let passed = (now - limit.phase(name, stored_key)?).rem_euclid(period);
        let left = if limit.kind() == Kind::SlidingWindow {
            let parts = i128::from(limit.resolution());
            let left = i128::from(period) - (i128::from(passed) * parts).rem_euclid(i128::from(period));
            i64::try_from(left / parts).ok()?
        } else {
            period - passed
        };
        Some(Duration::from_micros(left.unsigned_abs()))
    }
}

/// The database's clock, as this process follows it.
#[derive(Debug, Default)]
struct DatabaseClock {
    reading: Mutex<Option<Reading>>,
    /// Held while the database is asked, so that one request asks for all.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// In microseconds since the Unix epoch. `None` if the database did not answer.
    clock: Option<i64>,
    /// When the answer arrived. The database read its clock up to a round trip before. So windows end a moment later here than in
    /// the database, and no client returns too early.
    since: Instant,
}

/// The time for which a reading is used.
const FRESH: Duration = Duration::from_secs(60);

/// 2100-01-01, in microseconds since the Unix epoch.
const END_OF_CENTURY: i64 = 4_102_444_800_000_000;

impl DatabaseClock {
    /// Reads the clock, unless it was read within the last minute. A request waits only for the first reading.
    async fn learn(self: &Arc<Self>, limiter: &Limiter) {
        let Some(Reading { since, .. }) = *self.lock() else { return self.read(limiter).await };
        if limiter.clock().now().saturating_duration_since(since) >= FRESH && self.asking.try_lock().is_ok() {
            let (clock, limiter) = (Arc::clone(self), limiter.clone());
            tokio::spawn(async move { clock.read(&limiter).await });
        }
    }

    async fn read(&self, limiter: &Limiter) {
        let asked = limiter.clock().now();
        let _asking = self.asking.lock().await;
        let (Some(century), local) = (century(), limiter.clock().pinned()) else { return };
        if self.lock().is_some_and(|reading| reading.since >= asked) {
            return; // Another request has asked meanwhile.
        }
        let clock = match limiter.own_transaction(ReadWindow(century)).await {
            Ok(window) => i64::try_from(window.ends_in.as_micros()).ok().map(|left| END_OF_CENTURY - left),
            Err(error) => {
                if self.lock().is_none_or(|reading| reading.clock.is_some()) {
                    tracing::warn!(%error, "the database's clock is not known: left out of RateLimit");
                }
                None
            }
        };
        *self.lock() = Some(Reading { clock, since: local.now() });
    }

    /// The clock at this moment, in microseconds since the Unix epoch.
    fn at(&self, moment: Instant) -> Option<i64> {
        let Reading { clock, since } = (*self.lock())?;
        let passed = moment.saturating_duration_since(since);
        Some(clock? + i64::try_from(passed.as_micros()).ok()?)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Reading>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The years from 2000 to 2099, as a calendar window. The database's clock follows from the time until it ends. So callers
/// need no right to another function.
fn century() -> Option<Limit> {
    Limit::calendar(1, Calendar::years(100)).anchor("2000-01-01").build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    impl Windows {
        /// Windows that know this clock, and the moment for which they know it.
        pub(in crate::web::answer) fn at(clock: i64) -> (Self, Instant) {
            let (windows, since) = (Self::default(), Instant::now());
            *windows.clock.lock() = Some(Reading { clock: Some(clock), since });
            (windows, since)
        }
    }

    #[test]
    fn windows_count_down_to_their_end() {
        let start = 1_767_225_600_000_000; // 2026-01-01
        let (windows, since) = Windows::at(start + 5_000_000);
        let fixed = Limit::fixed_window(10, MINUTE).start(Duration::ZERO).build().unwrap();
        let shifted = Limit::fixed_window(10, MINUTE).start(Duration::from_secs(20)).build().unwrap();
        let sliding = Limit::sliding_window(10, MINUTE).build().unwrap();
        let fine = Limit::sliding_window(10, MINUTE).resolution(7).build().unwrap();
        let ends_in = |after: u64, limit: &Limit| {
            windows.ends_in(since + Duration::from_secs(after), limit, "a", "u1").unwrap().as_micros()
        };
        for (limit, expected) in [
            (&fixed, [55_000_000, 30_000_000, 2_000_000, 60_000_000]),
            (&shifted, [15_000_000, 50_000_000, 22_000_000, 20_000_000]),
            (&sliding, [55_000_000, 30_000_000, 2_000_000, 60_000_000]),
            (&fine, [3_571_428, 4_285_714, 2_000_000, 8_571_428]),
        ] {
            assert_eq!([0, 25, 53, 55].map(|after| ends_in(after, limit)), expected, "{limit}");
        }
        let bucket = Limit::token_bucket(10, MINUTE).build().unwrap();
        assert_eq!(windows.ends_in(since, &bucket, "a", "u1"), None);
        assert_eq!(Windows::default().ends_in(since, &fixed, "a", "u1"), None);
    }
}
