use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram as Recorded;

/// The latencies of concurrent calls. Percentiles are within 1 % of the recorded values.
pub(super) struct Histogram(Mutex<Recorded<u64>>);

/// In nanoseconds. Longer calls count as calls of an hour.
const LONGEST: u64 = 3_600_000_000_000;

impl Histogram {
    pub(super) fn new() -> Self {
        let recorded = Recorded::new_with_bounds(1, LONGEST, 2).expect("2 digits and an upper bound above 2 are valid");
        Self(Mutex::new(recorded))
    }

    fn recorded(&self) -> MutexGuard<'_, Recorded<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, took: Duration) {
        self.recorded().saturating_record(u64::try_from(took.as_nanos()).unwrap_or(LONGEST));
    }

    /// The number of recorded calls.
    pub(super) fn count(&self) -> u64 {
        self.recorded().len()
    }

    /// The time within which this part of the calls (0 to 1) returned. 0 if there was no call.
    pub(super) fn percentile(&self, part: f64) -> Duration {
        Duration::from_nanos(self.recorded().value_at_quantile(part))
    }
}
