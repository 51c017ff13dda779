//! Pauses between attempts.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};

use crate::error::clone_error;
use crate::retry::{RetryPolicy, clamped_fraction, part_of};

/// Clamps a duration to 365 days: a longer one cannot be added to every clock.
pub(crate) fn longest(deadline: Duration) -> Duration {
    deadline.min(Duration::from_secs(365 * 86_400))
}

/// The attempts at one operation.
#[derive(Debug)]
pub(crate) struct Attempts {
    made: u32,
    most: u32,
    began: Instant,
    deadline: Instant,
    /// The pauses, before jitter: that of `backon` only makes them longer.
    pauses: <ExponentialBuilder as BackoffBuilder>::Backoff,
    jitter: f64,
    /// The last error that a server reported.
    reported: Option<sqlx::Error>,
}

impl Attempts {
    pub(crate) fn new(policy: &RetryPolicy) -> Self {
        Self::until(policy, Instant::now() + longest(policy.deadline))
    }

    /// Starts with the time left until a deadline that was set before.
    pub(crate) fn until(policy: &RetryPolicy, deadline: Instant) -> Self {
        let longest_pause = longest(policy.max);
        let factor = if policy.multiplier >= 1.0 { policy.multiplier.min(1e3) as f32 } else { 1.0 };
        let pauses = ExponentialBuilder::new()
            .with_min_delay(policy.initial.min(longest_pause))
            .with_max_delay(longest_pause)
            .with_factor(factor)
            .without_max_times();
        Self {
            made: 1,
            most: policy.max_attempts.max(1),
            began: Instant::now(),
            deadline,
            pauses: pauses.build(),
            jitter: clamped_fraction(policy.jitter),
            reported: None,
        }
    }

    /// Returns the pause before the next attempt, and counts that attempt; `None` if none is left.
    pub(crate) fn next_delay(&mut self) -> Option<Duration> {
        if self.made >= self.most {
            return None;
        }
        let pause = self.pauses.next()?;
        let spread = pause.mul_f64(self.jitter);
        let pause = pause.saturating_sub(spread) + part_of(spread * 2);
        if Instant::now().checked_add(pause).is_none_or(|then| then >= self.deadline) {
            return None;
        }
        self.made += 1;
        Some(pause)
    }

    /// Counts the next attempt, without a pause. Returns `false` if none is left.
    pub(crate) fn at_once(&mut self) -> bool {
        let left = self.made < self.most && Instant::now() < self.deadline;
        self.made += u32::from(left);
        left
    }

    /// Notes the error of an attempt that is retried.
    pub(crate) fn failed_with(&mut self, error: &sqlx::Error) {
        if error.as_database_error().is_some() {
            self.reported = Some(clone_error(error));
        }
    }

    /// Returns the error to report after the last attempt. If that got no answer, it is the server's answer to an earlier attempt:
    /// it names the cause.
    pub(crate) fn to_report(&self, last: sqlx::Error) -> sqlx::Error {
        match &self.reported {
            Some(reported) if last.as_database_error().is_none() => clone_error(reported),
            _ => last,
        }
    }

    /// Returns the number of attempts made, including the current one.
    pub(crate) const fn made(&self) -> u32 {
        self.made
    }

    /// Whether the most attempts were made.
    pub(crate) const fn are_used_up(&self) -> bool {
        self.made >= self.most
    }

    /// Moves the deadline to a later time.
    pub(crate) const fn postpone(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_after_max_attempts() {
        let policy = RetryPolicy { max_attempts: 3, ..RetryPolicy::default() };
        let mut attempts = Attempts::new(&policy);
        assert!(attempts.next_delay().is_some());
        assert!(attempts.next_delay().is_some());
        assert_eq!(attempts.next_delay(), None);
        assert_eq!(attempts.made(), 3);
    }

    #[test]
    fn no_pause_extends_past_the_deadline() {
        let policy = RetryPolicy {
            deadline: Duration::from_millis(1),
            initial: Duration::from_secs(1),
            max: Duration::from_secs(1),
            ..RetryPolicy::default()
        };
        assert_eq!(Attempts::new(&policy).next_delay(), None);
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let policy = RetryPolicy { jitter: 0.0, ..RetryPolicy::default() };
        let mut attempts = Attempts::new(&policy);
        let pauses: Vec<_> = (0..9).filter_map(|_| attempts.next_delay()).map(|pause| pause.as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 100, 100]);
    }

    #[test]
    fn pauses_stay_between_the_first_and_the_longest() {
        let (initial, max) = (Duration::from_millis(3), Duration::from_secs(2));
        for multiplier in [-1.0, 0.0, 1.0, 1.5, 2.0, 1e30, f64::INFINITY, f64::NAN] {
            let deadline = Duration::MAX;
            let policy = RetryPolicy { initial, max, multiplier, jitter: 0.0, deadline, ..RetryPolicy::default() };
            let mut attempts = Attempts::new(&policy);
            let pauses: Vec<_> = std::iter::from_fn(|| attempts.next_delay()).collect();
            assert_eq!((pauses.len(), pauses[0]), (49, initial), "{multiplier}");
            assert!(pauses.is_sorted() && pauses.iter().all(|pause| *pause <= max), "{multiplier}: {pauses:?}");
            assert_eq!(*pauses.last().expect("a pause") == max, multiplier > 1.0, "{multiplier}: {pauses:?}");
        }
    }

    #[test]
    fn jitter_makes_pauses_shorter_and_longer() {
        let pause = Duration::from_millis(100);
        let policy =
            RetryPolicy { initial: pause, max: pause, jitter: 0.5, max_attempts: 1001, ..RetryPolicy::default() };
        let mut attempts = Attempts::new(&policy);
        let pauses: Vec<_> = (0..1000).filter_map(|_| attempts.next_delay()).collect();
        assert_eq!(pauses.len(), 1000);
        assert!(pauses.iter().all(|drawn| (pause / 2..=pause * 3 / 2).contains(drawn)));
        assert!(
            pauses.iter().any(|drawn| *drawn < pause * 6 / 10) && pauses.iter().any(|drawn| *drawn > pause * 14 / 10)
        );
    }

    #[test]
    fn out_of_range_settings_are_clamped() {
        let policy = RetryPolicy {
            max_attempts: 0,
            jitter: f64::NAN,
            multiplier: f64::NAN,
            deadline: Duration::MAX,
            max: Duration::MAX,
            ..RetryPolicy::default()
        };
        let mut attempts = Attempts::new(&policy);
        assert_eq!(attempts.next_delay(), None);
        let policy = RetryPolicy { max_attempts: 9, ..policy };
        assert!((0..8).all(|_| Attempts::new(&policy).next_delay().is_some()));
        let policy = RetryPolicy { initial: Duration::MAX, ..policy };
        assert_eq!(Attempts::new(&policy).next_delay(), None);
    }
}
