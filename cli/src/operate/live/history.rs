//! Amounts over the last ten minutes, in bins of a few seconds.

use std::collections::BTreeMap;

/// The length of a bin, in microseconds.
pub(crate) const BIN: i64 = 5_000_000;
/// Ten minutes.
pub(crate) const BINS: usize = 120;
/// The time over which the present rate is measured, in microseconds.
pub(super) const PRESENT: i64 = 10_000_000;

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// By the number of the bin since the Unix epoch.
    amounts: BTreeMap<i64, f32>,
    /// Each amount with its time, for at least [`PRESENT`].
    recent: Vec<(i64, f32)>,
}

impl History {
    /// Adds an amount at a time. Times before the last bin count in the last bin.
    pub(super) fn add(&mut self, at: i64, amount: f64) {
        if amount > 0.0 {
            self.recent.push((at, amount as f32));
        }
        self.recent.retain(|(then, _)| at - then <= 2 * PRESENT);
        let bin = self.last().unwrap_or(i64::MIN).max(at.div_euclid(BIN));
        *self.amounts.entry(bin).or_default() += amount as f32;
        self.amounts.retain(|kept, _| *kept > bin - BINS as i64);
    }

    fn last(&self) -> Option<i64> {
        self.amounts.last_key_value().map(|(bin, _)| *bin)
    }

    /// Whether nothing of it is within the last ten minutes.
    pub(super) fn is_over(&self, now: i64) -> bool {
        self.last().is_none_or(|last| now.div_euclid(BIN) - last > BINS as i64)
    }

    /// The amounts of all bins before the one of `now`, which is not over, oldest first.
    pub(super) fn bins(&self, now: i64) -> Vec<f64> {
        let current = now.div_euclid(BIN);
        let amount = |bin| self.amounts.get(&bin).map_or(0.0, |amount| f64::from(*amount));
        (current - BINS as i64..current).map(amount).collect()
    }

    /// The amount per second between two samples that are about [`PRESENT`] apart.
    pub(super) fn per_second(&self, since: i64, now: i64) -> f64 {
        let recent = self.recent.iter().filter(|(at, _)| *at > since).map(|(_, amount)| f64::from(*amount));
        if now > since { recent.sum::<f64>() * 1e6 / (now - since) as f64 } else { 0.0 }
    }

    /// The amount per minute, over the minute before the bin of `now`.
    pub(super) fn per_minute(&self, now: i64) -> f64 {
        const MINUTE: i64 = 60_000_000 / BIN;
        let current = now.div_euclid(BIN);
        self.amounts.range(current - MINUTE..current).map(|(_, amount)| f64::from(*amount)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_in_the_bin_of_their_time_for_ten_minutes() {
        let mut history = History::default();
        assert!(history.is_over(0) && history.bins(0).iter().all(|amount| *amount == 0.0));
        history.add(7 * BIN, 1.0);
        history.add(7 * BIN + 1, 2.0);
        history.add(9 * BIN, 4.0);
        let bins = history.bins(10 * BIN);
        assert_eq!((bins.len(), &bins[BINS - 4..]), (BINS, &[0.0, 3.0, 0.0, 4.0][..]));
        assert_eq!(history.per_minute(10 * BIN), 7.0);
        // The present bin is not over, so it is left out.
        assert_eq!(history.bins(9 * BIN).iter().sum::<f64>(), 3.0);
        assert!(!history.is_over(100 * BIN) && history.is_over(200 * BIN));
        assert_eq!(history.bins(129 * BIN)[0], 4.0);
        assert_eq!(history.per_second(8 * BIN, 10 * BIN), 0.4);
        assert_eq!((history.per_second(9 * BIN, 10 * BIN), history.per_second(9 * BIN, 9 * BIN)), (0.0, 0.0));
        for bin in 0..1000 {
            history.add(bin * BIN, 1.0);
        }
        assert_eq!((history.amounts.len(), history.bins(1000 * BIN).iter().sum::<f64>()), (BINS, 120.0));
    }
}
