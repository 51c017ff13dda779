//! An exponential moving average of durations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Cheap to clone. All clones share one value.
#[derive(Clone, Debug)]
pub(super) struct MovingAverage(Arc<AtomicU64>);

impl MovingAverage {
    pub(super) fn new(length: Duration) -> Self {
        Self(Arc::new(AtomicU64::new(micros(length))))
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    /// Adds a value, with a weight of one eighth.
    pub(super) fn add(&self, length: Duration) {
        let mean = self.0.load(Ordering::Relaxed);
        self.0.store(mean - mean / 8 + micros(length) / 8, Ordering::Relaxed); // A race may lose a value, which does no harm.
    }
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX / 16).min(u64::MAX / 16)
}
