//! The tokens that an allowance holds.

use std::collections::VecDeque;
use std::time::Instant;

use crate::call::Item;

/// The tokens of one refill.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) tokens: f64,
    pub(super) expires_at: Instant,
    pub(super) window_ends_at: Option<Instant>,
    /// With the limit that they were taken from.
    pub(super) item: Item,
    /// Serves the callers that waited for it even if it has expired on its way, as the answer to a call does.
    pub(super) has_just_arrived: bool,
}

/// Batches in the order of their arrival. The older ones are spent first.
#[derive(Debug, Default)]
pub(super) struct Held(VecDeque<Batch>);

impl Held {
    pub(super) fn add(&mut self, batch: Batch) {
        self.0.push_back(batch);
    }

    /// Spends the tokens, all or none.
    pub(super) fn spend(&mut self, count: f64, now: Instant) -> bool {
        self.spend_of(count, |batch| batch.expires_at > now)
    }

    /// The same, also of a batch that has just arrived.
    pub(super) fn spend_arrived(&mut self, count: f64, now: Instant) -> bool {
        self.spend_of(count, |batch| batch.has_just_arrived || batch.expires_at > now)
    }

    fn spend_of(&mut self, count: f64, is_usable: impl Fn(&Batch) -> bool) -> bool {
        let mut need = count;
        for batch in self.0.iter().filter(|batch| is_usable(batch)) {
            need = minus_up(need, need.min(batch.tokens));
        }
        // Also false for NaN.
        if !(count >= 0.0 && need == 0.0) {
            return false;
        }
        need = count;
        for batch in self.0.iter_mut().filter(|batch| is_usable(batch)) {
            let part = need.min(batch.tokens);
            need = minus_up(need, part);
            batch.tokens = minus_down(batch.tokens, part).max(0.0);
        }
        if self.0.front().is_some_and(|batch| batch.tokens == 0.0) {
            self.0.retain(|batch| batch.tokens > 0.0);
        }
        true
    }

    /// The callers that waited for the last batch have been served.
    pub(super) fn settle(&mut self) {
        self.0.iter_mut().for_each(|batch| batch.has_just_arrived = false);
    }

    /// Returns the number of tokens that can be spent.
    pub(super) fn live(&self, now: Instant) -> f64 {
        self.0.iter().filter(|batch| batch.expires_at > now).map(|batch| batch.tokens).sum()
    }

    /// Returns the number of tokens, with those that have expired and are not given back yet.
    pub(super) fn all(&self) -> f64 {
        self.0.iter().map(|batch| batch.tokens).sum()
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.0.iter().map(|batch| batch.expires_at).min()
    }

    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Batch> {
        let (expired, kept) = std::mem::take(&mut self.0).into_iter().partition(|batch| batch.expires_at <= now);
        self.0 = kept;
        Vec::from_iter::<VecDeque<_>>(expired)
    }

    pub(super) fn drain(&mut self) -> Vec<Batch> {
        std::mem::take(&mut self.0).into()
    }
}

/// Returns the difference and its rounding error: their sum is exact.
fn minus(from: f64, part: f64) -> (f64, f64) {
    let left = from - part;
    let minus_part = left - from;
    (left, (from - (left - minus_part)) + (-part - minus_part))
}

fn minus_down(from: f64, part: f64) -> f64 {
    let (left, error) = minus(from, part);
    if error < 0.0 { left.next_down() } else { left }
}

fn minus_up(from: f64, part: f64) -> f64 {
    let (left, error) = minus(from, part);
    if error > 0.0 { left.next_up() } else { left }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn batch(tokens: f64, expires_at: Instant) -> Batch {
        Batch { tokens, expires_at, window_ends_at: None, item: Item::new("a", "k"), has_just_arrived: false }
    }

    #[test]
    fn tokens_are_spent_all_or_none_over_batches() {
        let (mut held, now) = (Held::default(), Instant::now());
        let later = now + Duration::from_secs(60);
        held.add(batch(3.0, later));
        held.add(batch(10.0, later));
        assert!(held.spend(0.0, now));
        for wrong in [13.5, -1.0, f64::NAN, f64::INFINITY] {
            assert!(!held.spend(wrong, now), "{wrong}");
        }
        assert_eq!(held.all(), 13.0);
        assert!(held.spend(5.0, now));
        assert_eq!((held.live(now), held.0.len()), (8.0, 1));
        assert!(held.spend(8.0, now) && !held.spend(1e-300, now));
        assert!(held.0.is_empty());
    }

    #[test]
    fn expired_tokens_are_not_spent() {
        let (mut held, now) = (Held::default(), Instant::now());
        let end = now + Duration::from_secs(1);
        held.add(batch(3.0, end));
        held.add(batch(3.0, end + Duration::from_secs(1)));
        assert_eq!((held.live(now), held.live(end), held.all()), (6.0, 3.0, 6.0));
        assert!(!held.spend(4.0, end) && held.spend(2.0, end));
        assert_eq!(held.next_expiry(), Some(end));
        let expired: Vec<f64> = held.take_expired(end).iter().map(|batch| batch.tokens).collect();
        assert_eq!((expired, held.all()), (vec![3.0], 1.0));
        // A refill that took longer than its time to live serves the callers that waited for it.
        let mut late = batch(2.0, now);
        late.has_just_arrived = true;
        held.add(late);
        assert!(!held.spend(3.0, end) && held.spend_arrived(2.5, end));
        held.settle();
        assert_eq!(held.all(), 0.5);
        assert!(!held.spend_arrived(0.25, end));
    }

    /// The exact sum of what was spent never exceeds the tokens, whatever the fractions.
    #[test]
    fn fractions_are_rounded_against_the_caller() {
        let now = Instant::now();
        for count in [0.1, 0.3, 1.0 / 3.0, 0.7, 1e-3, 1e-17] {
            let mut held = Held::default();
            for _ in 0..3 {
                held.add(batch(1.0, now + Duration::from_secs(1)));
            }
            // Exact: the last bit of each number is worth more.
            let units = |tokens: f64| (tokens * 2_f64.powi(110)) as u128;
            let mut times = 0_u128;
            while times < 10_000 && held.spend(count, now) {
                times += 1;
                let left = held.0.iter().map(|batch| units(batch.tokens)).sum::<u128>();
                assert!(times * units(count) + left <= units(3.0), "{count}: {times} times");
            }
            assert!(times == 10_000 || times as f64 * count > 3.0 - 1.5 * count, "{count}: {times} times");
        }
        assert_eq!(minus_down(1.0, 1e-17), 1.0_f64.next_down());
        assert_eq!((minus_down(10.0, 3.0), minus_up(10.0, 3.0)), (7.0, 7.0));
        assert_eq!(minus_up(1.0, 1.0), 0.0);
    }
}
