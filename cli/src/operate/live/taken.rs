//! How many tokens were taken: between two states of a row, and over the last ten minutes.

use std::collections::BTreeMap;

use crate::operate::export::Row;
use crate::operate::live::view::{Lease, SlidingCounts, leases};
use crate::text::period_micros;
use pg_limiter::{Kind, Limit};

/// How the buckets of a limit refill: as its definition says, or as their rows show.
#[derive(Clone, Debug, Default)]
pub(super) struct Refill {
    limit: Option<Limit>,
    /// Without a definition: tokens per microsecond. Two rows show the rate of a token bucket: it is full at `idle_at`,
    /// `(capacity - value) / rate` after `ts`. The rows of a window do not: several values have the same `idle_at`.
    rate: Option<f64>,
    is_window: bool,
    /// The largest value.
    most: f64,
}

impl Refill {
    pub(super) fn new(limit: Option<&Limit>) -> Self {
        Self { limit: limit.copied(), ..Self::default() }
    }

    /// The tokens or slots that were taken since `before`, or at least so many. Negative: returned, or moved here from another row.
    pub(super) fn taken(&mut self, before: Option<&Row>, now: &Row) -> f64 {
        if let Some(counts) = &now.detail {
            return if counts.first() == Some(&-1.0) { slots_taken(before, now) } else { taken_in_window(before, now) };
        }
        let before = before.filter(|before| before.detail.is_none());
        if let Some(limit) = &self.limit {
            return if limit.kind() == Kind::Gate { 0.0 } else { of_limit(limit, before, now) };
        }
        self.most = self.most.max(now.value);
        let Some(before) = before else { return 0.0 };
        self.learn(before, now);
        match self.rate {
            _ if before.ts == now.ts => before.value - now.value,
            _ if self.is_window => self.most - now.value,
            // The bucket was full at the earlier `idle_at`, if not later.
            Some(rate) => (now.idle_at - before.idle_at.max(now.ts)).max(0) as f64 * rate,
            None => (before.value - now.value).max(0.0),
        }
    }

    fn learn(&mut self, before: &Row, now: &Row) {
        let longer = (now.idle_at - now.ts) - (before.idle_at - before.ts);
        let lower = before.value - now.value;
        if before.ts == now.ts && lower != 0.0 && longer == 0 {
            self.is_window = true;
        } else if lower.abs() > 1e-9 && longer.abs() > 1 && (lower > 0.0) == (longer > 0) {
            self.rate = Some(lower / longer as f64);
        }
    }
}

fn of_limit(limit: &Limit, before: Option<&Row>, now: &Row) -> f64 {
    let shards = f64::from(now.shards.max(1));
    let (rate, capacity) = (limit.rate() / shards, limit.capacity() / shards);
    let Some(before) = before else { return capacity - now.value };
    let periods = (now.ts - before.ts).max(0) as f64 / period_micros(limit).max(1) as f64;
    let refills = match limit.kind() {
        Kind::FixedWindow => periods.round(),
        // Spans of a calendar differ in length.
        Kind::CalendarWindow if periods > 0.0 => periods.round().max(1.0),
        Kind::CalendarWindow => 0.0,
        _ => periods,
    };
    (before.value + rate * refills).min(capacity.max(before.value)) - now.value
}

fn slots_taken(before: Option<&Row>, now: &Row) -> f64 {
    let known: Vec<Lease> = before.map(leases).unwrap_or_default();
    let is_new = |lease: &Lease| known.iter().all(|other| other.id != lease.id);
    leases(now).into_iter().filter(is_new).map(|lease| lease.slots).sum()
}

fn taken_in_window(before: Option<&Row>, now: &Row) -> f64 {
    let Some(counts) = SlidingCounts::read(now) else { return 0.0 };
    let Some(earlier) = before.and_then(SlidingCounts::read) else { return now.value };
    if earlier.counts.len() != counts.counts.len() || (earlier.period, earlier.phase) != (counts.period, counts.phase) {
        return now.value; // Another grid.
    }
    let steps = earlier.steps(now.ts);
    let since: f64 = counts.counts.iter().take(steps + 1).sum();
    // The part of the earlier write is still counted, unless the window has passed it.
    if steps < counts.counts.len() { since - earlier.counts[0] } else { since }
}

/// The length of a bin, in microseconds.
pub(crate) const BIN: i64 = 5_000_000;
/// Ten minutes.
pub(crate) const BINS: usize = 120;
/// The time over which the present rate is measured, in microseconds.
pub(super) const PRESENT: i64 = 10_000_000;

/// Amounts in bins of a few seconds.
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
    use std::time::Duration;

    use super::*;
    use crate::operate::live::view::tests::row;

    const SECOND: i64 = 1_000_000;

    #[test]
    fn a_defined_limit_says_what_was_refilled() {
        let bucket = Limit::token_bucket(2, Duration::from_secs(1)).capacity(10).build().unwrap();
        let mut refill = Refill::new(Some(&bucket));
        let first = row(9.0, 0, 0, None);
        assert_eq!(refill.taken(None, &first), 1.0);
        assert_eq!(refill.taken(Some(&first), &first), 0.0);
        assert_eq!(refill.taken(Some(&row(5.0, 0, 0, None)), &row(4.0, 2 * SECOND, 0, None)), 5.0);
        // Full after 2.5 s.
        assert_eq!(refill.taken(Some(&row(5.0, 0, 0, None)), &row(7.0, 100 * SECOND, 0, None)), 3.0);
        let window = Limit::fixed_window(10, Duration::from_secs(60)).build().unwrap();
        let mut refill = Refill::new(Some(&window));
        assert_eq!(refill.taken(Some(&row(4.0, 0, 0, None)), &row(1.0, 0, 0, None)), 3.0);
        assert_eq!(refill.taken(Some(&row(4.0, 0, 0, None)), &row(9.0, 60 * SECOND, 0, None)), 1.0);
        assert_eq!(Refill::new(Some(&Limit::gate())).taken(None, &row(-5.0, 0, 5, None)), 0.0);
    }

    #[test]
    fn rows_of_a_token_bucket_show_its_rate() {
        // 2 per second, capacity 10.
        let bucket = |value: f64, ts| row(value, ts, ts + ((10.0 - value) / 2.0 * SECOND as f64) as i64, None);
        let mut refill = Refill::new(None);
        // 5 + 2 - 3 = 4 tokens were taken, and the rows show it.
        assert!((refill.taken(Some(&bucket(5.0, 0)), &bucket(3.0, SECOND)) - 4.0).abs() < 1e-6);
        // From a full bucket.
        assert!((refill.taken(Some(&bucket(9.0, 0)), &bucket(8.0, 100 * SECOND)) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn rows_of_a_window_show_that_they_do_not_refill_between() {
        let mut refill = Refill::new(None);
        let bucket = |value, window: i64| row(value, window, window + 60, None);
        assert_eq!(refill.taken(None, &bucket(9.0, 0)), 0.0);
        assert_eq!(refill.taken(Some(&bucket(9.0, 0)), &bucket(4.0, 0)), 5.0);
        assert_eq!(refill.taken(Some(&bucket(4.0, 0)), &bucket(8.0, 60)), 1.0);
    }

    #[test]
    fn the_counts_of_a_sliding_window_say_what_was_taken() {
        let mut refill = Refill::new(None);
        let window = |value, ts, [last, first]: [f64; 2]| row(value, ts, 0, Some(vec![100.0, 0.0, 9.0, last, first]));
        assert_eq!(refill.taken(None, &window(2.0, 10, [0.0, 0.0])), 2.0);
        assert_eq!(refill.taken(Some(&window(2.0, 10, [0.0, 0.0])), &window(5.0, 20, [0.0, 0.0])), 3.0);
        // Two more in the first part, and one in the next.
        assert_eq!(refill.taken(Some(&window(2.0, 10, [0.0, 0.0])), &window(1.0, 60, [4.0, 0.0])), 3.0);
        assert_eq!(refill.taken(Some(&window(2.0, 10, [0.0, 0.0])), &window(1.0, 900, [3.0, 0.0])), 4.0);
    }

    #[test]
    fn new_leases_are_slots_that_were_taken() {
        let held = |leases: &[f64]| {
            let counts = leases.iter().flat_map(|id| [90.0, -id, 2.0]);
            row(0.0, 0, 90, Some(std::iter::once(-1.0).chain(counts).collect()))
        };
        let mut refill = Refill::new(None);
        assert_eq!(refill.taken(None, &held(&[5.0])), 2.0);
        assert_eq!(refill.taken(Some(&held(&[5.0])), &held(&[5.0, 6.0])), 2.0);
        assert_eq!(refill.taken(Some(&held(&[5.0, 6.0])), &held(&[6.0])), 0.0);
    }

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
