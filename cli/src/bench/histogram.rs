//! A histogram of latencies, in buckets of equal ratio. Recording a call neither allocates nor locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Each doubling has 64 buckets, so a percentile is within 1 % of the recorded value.
const BITS: u32 = 6;
const EACH: usize = 1 << BITS;
const BUCKETS: usize = EACH * (65 - BITS as usize);

pub(super) struct Histogram {
    buckets: Box<[AtomicU64]>,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of recorded calls.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The time within which this part of the calls (0 to 1) returned.
    pub(super) fn percentile(&self, part: f64) -> Duration {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (nth, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Ordering::Relaxed);
            if seen >= rank {
                return Duration::from_nanos(middle(nth));
            }
        }
        Duration::ZERO
    }
}

fn bucket(nanos: u64) -> usize {
    let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(BITS + 1);
    shift as usize * EACH + (nanos >> shift) as usize
}

fn middle(bucket: usize) -> u64 {
    // The first two rows hold the small values, which need no rounding.
    let shift = (bucket / EACH).saturating_sub(1);
    let low = ((bucket - shift * EACH) as u64) << shift;
    low + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_bucket_is_within_one_percent_of_its_values() {
        for nanos in (0..64).flat_map(|bit| [1_u64 << bit, (1 << bit) + (1 << bit) / 3, u64::MAX >> bit]) {
            let read = middle(bucket(nanos));
            assert!(read.abs_diff(nanos) as f64 <= nanos as f64 * 0.01, "{nanos} {read}");
        }
        assert!(bucket(0) == 0 && bucket(u64::MAX) == BUCKETS - 1);
    }

    #[test]
    fn percentiles_match_the_recorded_values() {
        let histogram = Histogram::new();
        assert_eq!((histogram.count(), histogram.percentile(0.5)), (0, Duration::ZERO));
        (1..=100).for_each(|nanos| histogram.record(Duration::from_nanos(nanos)));
        let read = [0.01, 0.5, 0.99, 1.0].map(|part| histogram.percentile(part).as_nanos());
        assert_eq!((histogram.count(), read), (100, [1, 50, 99, 100]));
    }
}
