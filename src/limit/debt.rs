//! Converts between debts and waiting times: how many tokens may be owed so that they arrive in time.

use std::time::Duration;

use crate::limit::{Kind, LARGEST_NUMBER, Limit};

/// Tolerance for sums of fractions, which are not exact.
const SLACK: f64 = 1e-9;

impl Limit {
    /// The number of tokens that always arrive within this time, whenever it starts. A larger debt may not be repaid in time.
    pub(crate) fn arriving_within(&self, time: Duration) -> f64 {
        let periods = time.as_micros() as f64 / self.period_micros() as f64;
        let tokens = match self.kind() {
            Kind::TokenBucket => periods * self.rate(),
            Kind::FixedWindow => periods.floor() * self.rate(),
            Kind::SlidingWindow | Kind::Concurrency | Kind::Gate => 0.0,
            Kind::CalendarWindow => {
                self.every().map_or(0.0, |every| every.starting_within(time.as_micros() as f64)) * self.rate()
            }
        };
        tokens.min(LARGEST_NUMBER)
    }

    /// The shortest and the longest time until this many owed tokens have arrived.
    pub(crate) fn time_to_arrive(&self, tokens: f64) -> (Duration, Duration) {
        let periods = tokens / self.rate();
        let micros =
            |periods: f64| Duration::from_micros((periods * self.period_micros() as f64).clamp(0.0, 1e18) as u64);
        if let Some(windows) = self.windows() {
            let micros = |micros: f64| Duration::from_micros(micros.clamp(0.0, 1e18) as u64);
            let (shortest, _) = windows.every.micros_of((periods + SLACK).floor());
            let (_, longest) = windows.every.micros_of((periods - SLACK).ceil());
            return (micros(shortest), micros(longest));
        }
        match self.kind() {
            // Tokens arrive when a window opens, so only whole periods count.
            Kind::FixedWindow => (micros((periods + SLACK).floor()), micros((periods - SLACK).ceil())),
            _ => (micros(periods), micros(periods)),
        }
    }

    /// The time until a fixed window with this balance is full, if its present window ends in `window_ends_in`.
    pub(crate) fn full_in(&self, balance: f64, window_ends_in: Duration) -> Duration {
        // As in the database.
        let windows = ((self.capacity() - balance) / self.rate() - SLACK).ceil();
        if windows < 1.0 {
            return Duration::ZERO;
        }
        let later = ((windows - 1.0) * self.period_micros() as f64).min(1e18) as u64;
        window_ends_in.saturating_add(Duration::from_micros(later))
    }

    /// The number of windows that fill an empty bucket, at least 1.
    pub(crate) fn windows_to_fill(&self) -> f64 {
        (self.capacity() / self.rate() - SLACK).ceil().max(1.0)
    }

    /// The same limit, with `max_reserved` lowered to at most this many tokens.
    pub(crate) fn owing_at_most(mut self, tokens: f64) -> Self {
        self.max_reserved = Some(self.max_reserved.map_or(tokens, |own| own.min(tokens)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_token_bucket_refills_continuously_and_a_fixed_window_when_it_starts() {
        let bucket = Limit::token_bucket(10, SECOND).build().expect("a limit");
        let window = Limit::fixed_window(10, SECOND).build().expect("a limit");
        for (time, flown, opened) in [(0, 0.0, 0.0), (999, 9.99, 0.0), (1000, 10.0, 10.0), (2500, 25.0, 20.0)] {
            let time = Duration::from_millis(time);
            assert!((bucket.arriving_within(time) - flown).abs() < 1e-9);
            assert_eq!(window.arriving_within(time), opened);
        }
        assert_eq!(bucket.time_to_arrive(25.0), (SECOND * 5 / 2, SECOND * 5 / 2));
        assert_eq!(window.time_to_arrive(20.0), (SECOND * 2, SECOND * 2));
        assert_eq!(window.time_to_arrive(25.0), (SECOND * 2, SECOND * 3));
        let endless = Limit::token_bucket(1e13, Duration::from_micros(1)).build().expect("a limit");
        assert_eq!(endless.arriving_within(Duration::MAX), LARGEST_NUMBER);
    }

    #[test]
    fn a_call_can_only_lower_max_reserved() {
        let own = Limit::token_bucket(10, SECOND).max_reserved(5).build().expect("a limit");
        assert_eq!(own.owing_at_most(7.0).max_reserved(), Some(5.0));
        assert_eq!(own.owing_at_most(3.0).max_reserved(), Some(3.0));
        let unbounded = Limit::token_bucket(10, SECOND).build().expect("a limit");
        assert_eq!(unbounded.owing_at_most(7.0).max_reserved(), Some(7.0));
    }
}
