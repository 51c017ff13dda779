use std::time::Duration;

use hdrhistogram::Histogram as Recorded;
use serde::{Deserialize, Serialize};

/// The latencies of calls. Percentiles are within 0.1 % of the recorded values. Its size is fixed, so recording a latency does not
/// allocate.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u32)>", into = "Vec<(u64, u32)>")]
pub(crate) struct Histogram(Recorded<u32>);

/// In nanoseconds. Longer calls count as calls of 18 minutes.
const LONGEST: u64 = 1 << 40;

impl Default for Histogram {
    fn default() -> Self {
        Self(Recorded::new_with_bounds(1, LONGEST, 3).expect("3 digits and an upper bound above 2 are valid"))
    }
}

/// Values in nanoseconds, with the number of calls of each.
impl From<Vec<(u64, u32)>> for Histogram {
    fn from(counts: Vec<(u64, u32)>) -> Self {
        let mut histogram = Self::default();
        counts.into_iter().for_each(|(nanos, count)| histogram.0.saturating_record_n(nanos, count));
        histogram
    }
}

impl From<Histogram> for Vec<(u64, u32)> {
    fn from(histogram: Histogram) -> Self {
        histogram.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LONGEST));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// The percentile in milliseconds, for a part from 0 to 1. `None` if nothing was recorded.
    pub(crate) fn percentile_ms(&self, part: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.0.value_at_quantile(part) as f64 / 1e6)
    }
}
