//! Counts the decisions on the calls to one limit.

use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Calls, without their retries.
    pub(super) calls: u64,
    /// Attempts: calls and their retries.
    pub(super) offered: u64,
    pub(super) admitted: u64,
    /// Admitted calls that had to wait for reserved tokens.
    pub(super) reserved: u64,
    pub(super) denied: u64,
    /// The longest wait that a decision returned. For retried calls: the longest time from arrival to admission.
    pub(super) longest_wait: Duration,
    /// The most slots that were held at the same time.
    pub(super) most_held: f64,
    /// Leases that ended before their release.
    pub(super) lost: u64,
    /// The slots that were held, each times how long, in microseconds.
    held: f64,
    /// The times at which tokens were used, in microseconds, and how many.
    uses: Vec<(i64, f64)>,
}

impl Outcome {
    /// The outcome of this number of calls, none of them decided yet.
    pub(super) fn of(calls: usize) -> Self {
        Self { calls: calls as u64, ..Self::default() }
    }

    pub(super) fn admit(&mut self, at: i64, came: i64, count: f64, wait: Option<Duration>) {
        self.offered += 1;
        self.admitted += 1;
        self.reserved += u64::from(wait.is_some());
        let wait = wait.unwrap_or_default();
        self.longest_wait = self.longest_wait.max(micros(at - came) + wait);
        self.uses.push((at.saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)), count));
    }

    /// Counts slots that were held for this time.
    pub(super) fn hold(&mut self, length: i64, count: f64) {
        self.held += length as f64 * count;
    }

    /// Counts a release. `was_held`: until then.
    pub(super) fn release(&mut self, length: i64, count: f64, was_held: bool) {
        self.hold(length, count);
        self.lost += u64::from(!was_held);
    }

    /// The number of slots that were held, on average over this time.
    pub(super) fn average_held(&self, length: i64) -> f64 {
        self.held / length as f64
    }

    /// Counts a denial. `retry_after` is `None` if the call will be retried.
    pub(super) fn deny(&mut self, retry_after: Option<Duration>) {
        self.offered += 1;
        self.denied += 1;
        self.longest_wait = self.longest_wait.max(retry_after.unwrap_or_default());
    }

    /// Calls that were not admitted: at the end, those that still wait for a retry.
    pub(super) const fn waiting(&self) -> u64 {
        self.calls - self.admitted
    }

    /// The most tokens used within any period, wherever it begins. Uses that are a whole period apart are not in the same
    /// period.
    pub(super) fn most_in_a_period(&self, period: i64) -> f64 {
        let mut uses = self.uses.clone();
        uses.sort_by_key(|(at, _)| *at);
        let (mut first, mut sum, mut most) = (0, 0.0, 0.0_f64);
        for (at, count) in &uses {
            sum += count;
            while uses[first].0.saturating_add(period) <= *at {
                sum -= uses[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }
}

fn micros(length: i64) -> Duration {
    Duration::from_micros(length.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_period_can_start_at_any_call() {
        let mut outcome = Outcome::default();
        for at in [0, 90, 95, 99, 100, 101, 188, 189, 190] {
            outcome.admit(at, at, 1.0, None);
        }
        // From 90 to 189: 190 is a whole period after 90.
        assert_eq!(outcome.most_in_a_period(100), 7.0);
        assert_eq!(outcome.most_in_a_period(1), 1.0);
        assert_eq!(outcome.most_in_a_period(i64::MAX), 9.0);
        assert_eq!(Outcome::default().most_in_a_period(5), 0.0);
    }

    #[test]
    fn a_reserved_call_counts_at_its_reserved_time() {
        let mut outcome = Outcome::default();
        outcome.admit(0, 0, 2.0, Some(Duration::from_micros(100)));
        outcome.admit(50, 10, 3.0, None);
        assert_eq!((outcome.most_in_a_period(50), outcome.most_in_a_period(51)), (3.0, 5.0));
        assert_eq!((outcome.longest_wait, outcome.reserved), (Duration::from_micros(100), 1));
    }
}
