//! A histogram of latencies. Its size is fixed, so recording a latency does not allocate.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Each power of two is divided into 2^7 parts, so a bucket is less than 1 % wide.
const PARTS: u32 = 7;
/// Up to 2^40 ns, 18 minutes.
const LONGEST: u64 = (1 << 40) - 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Histogram {
    counts: Vec<u32>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; bucket(LONGEST) + 1] }
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(LONGEST).min(LONGEST);
        self.counts[bucket(nanos)] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The percentile in milliseconds, for a part from 0 to 1. `None` if nothing was recorded.
    pub(crate) fn percentile_ms(&self, part: f64) -> Option<f64> {
        let wanted = self.count() as f64 * part;
        let mut before = 0.0;
        for (bucket, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if before + count >= wanted {
                let inside = (wanted - before) / count;
                let (low, high) = (lowest(bucket), lowest(bucket + 1));
                return Some((low + (high - low) * inside) / 1e6);
            }
            before += count;
        }
        None
    }
}

fn bucket(nanos: u64) -> usize {
    let power = u64::BITS - nanos.leading_zeros(); // nanos < 2^power
    let shift = power.saturating_sub(PARTS + 1);
    ((shift as usize) << PARTS) + (nanos >> shift) as usize
}

/// The lowest latency of a bucket, in nanoseconds.
fn lowest(bucket: usize) -> f64 {
    let shift = (bucket >> PARTS).saturating_sub(1);
    let inside = bucket - (shift << PARTS);
    inside as f64 * 2_f64.powi(i32::try_from(shift).unwrap_or(i32::MAX))
}
