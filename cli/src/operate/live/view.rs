//! Limits, keys and buckets as they are shown, in plain values. A bucket is the rows of one limit and key, as they are stored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operate::export::Row;
use crate::operate::live::taken::{BIN, BINS};
use crate::text::{age, period_micros, plural};
use pg_limiter::{Kind, Limit, LimitState};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Meaning {
    /// Tokens that were left at the last write. Negative: owed.
    TokensLeft,
    /// Tokens that were taken in the present part of a sliding window.
    TokensTaken,
    SlotsInUse,
    /// Nothing: the row is the block of a gate.
    Blocked,
}

impl Meaning {
    pub(crate) fn words(self, value: f64) -> String {
        let (noun, rest) = match self {
            Self::TokensLeft => ("token", "left"),
            Self::TokensTaken => ("token", "taken"),
            Self::SlotsInUse => ("slot", "in use"),
            Self::Blocked => return "blocked".to_owned(),
        };
        format!("{} {rest}", plural(value, noun))
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShardView {
    pub(crate) shard: i32,
    pub(crate) value: f64,
    pub(crate) since: i64,
    pub(crate) full_at: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    pub(crate) slots: f64,
    pub(crate) ends_at: i64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct BucketView {
    pub(crate) name: String,
    /// As stored.
    pub(crate) key: String,
    pub(crate) meaning: Meaning,
    /// The sum over the rows, each as of its last write.
    pub(crate) stored: f64,
    /// The last write. For a fixed or calendar window, the start of the window of the last write.
    pub(crate) since: i64,
    /// From then on, the row means the same as no row: as stored, or by the balance if that is known. For a block, its end.
    pub(crate) full_at: i64,
    pub(crate) shards: Vec<ShardView>,
    /// By end, those that have not ended.
    pub(crate) leases: Vec<Lease>,
    /// The counts of the parts of a sliding window, oldest first, and the length of a part in microseconds.
    pub(crate) window: Option<(i64, Vec<f64>)>,
}

impl BucketView {
    pub(super) fn new(rows: &[Row], now: i64) -> Option<Self> {
        let first = rows.first()?;
        let shard = |row: &Row| ShardView { shard: row.shard, value: row.value, since: row.ts, full_at: row.idle_at };
        let mut shards: Vec<ShardView> = rows.iter().map(shard).collect();
        shards.sort_by_key(|row| row.shard);
        let mut leases = leases(first);
        leases.retain(|lease| lease.ends_at > now);
        let meaning = match first.detail.as_deref() {
            Some([-1.0, ..]) => Meaning::SlotsInUse,
            Some([-2.0, ..]) => Meaning::Blocked,
            Some(_) => Meaning::TokensTaken,
            None => Meaning::TokensLeft,
        };
        let windows = rows.iter().filter_map(SlidingCounts::read).map(|counts| counts.at(now));
        let window = windows.reduce(|(part, sum), (_, other)| {
            (part, sum.into_iter().zip(other).map(|(sum, count)| sum + count).collect())
        });
        Some(Self {
            name: first.name.clone(),
            key: first.key.clone(),
            meaning,
            stored: match meaning {
                Meaning::SlotsInUse => leases.iter().map(|lease| lease.slots).sum(),
                _ => rows.iter().map(|row| row.value).sum(),
            },
            since: rows.iter().map(|row| row.ts).max().unwrap_or_default(),
            full_at: rows.iter().map(|row| row.idle_at).max().unwrap_or_default(),
            shards,
            leases,
            window,
        })
    }

    pub(crate) const fn is_full(&self, now: i64) -> bool {
        self.full_at <= now
    }

    /// Takes the time from a peek at `now`. The stored one is of the rule at the last write, and the limit may have changed since.
    pub(super) fn refills(&mut self, state: Option<&LimitState>, now: i64) {
        if let Some(full_in) = state.and_then(|state| state.full_in) {
            self.full_at = now.saturating_add(i64::try_from(full_in.as_micros()).unwrap_or(i64::MAX));
        }
    }

    /// Whether the bucket may not be full. If the limit has changed since the last write, the stored time does not show it.
    pub(super) fn may_be_used(&self, limit: Option<&Limit>, now: i64) -> bool {
        let Some(limit) = limit.filter(|_| self.is_full(now)) else { return !self.is_full(now) };
        let periods = (now - self.since) as f64 / period_micros(limit).max(1) as f64;
        match (self.meaning, limit.kind()) {
            (Meaning::TokensLeft, Kind::TokenBucket) => self.stored + periods * limit.rate() < limit.capacity(),
            (Meaning::TokensLeft, _) => self.stored + periods.floor() * limit.rate() < limit.capacity(),
            (Meaning::TokensTaken, _) => periods < 1.0,
            (Meaning::SlotsInUse | Meaning::Blocked, _) => false,
        }
    }

    /// A measure of how little is left, for buckets of one limit: larger is emptier. It needs no definition of the limit.
    pub(super) fn emptiness(&self, now: i64) -> f64 {
        match self.meaning {
            Meaning::SlotsInUse => self.stored,
            Meaning::TokensTaken => self.window.as_ref().map_or(self.stored, |(_, counts)| counts.iter().sum()),
            Meaning::TokensLeft => -self.stored,
            Meaning::Blocked => (self.full_at - now) as f64,
        }
    }
}

/// The leases of a row: `detail` is -1, and then end, -id and count of each.
pub(super) fn leases(row: &Row) -> Vec<Lease> {
    let Some([-1.0, leases @ ..]) = row.detail.as_deref() else { return Vec::new() };
    let lease = |lease: &[f64]| Lease { ends_at: lease[0] as i64, id: -lease[1] as i64, slots: lease[2] };
    leases.chunks_exact(3).map(lease).collect()
}

pub(super) struct SlidingCounts {
    pub(super) period: i64,
    pub(super) phase: i64,
    ts: i64,
    /// Newest first. One more than the window has parts.
    pub(super) counts: Vec<f64>,
}

impl SlidingCounts {
    pub(super) fn read(row: &Row) -> Option<Self> {
        let [period, phase, _rate, earlier @ ..] = row.detail.as_deref()? else { return None };
        if *period <= 0.0 || earlier.is_empty() {
            return None; // Slots.
        }
        let counts = std::iter::once(row.value).chain(earlier.iter().copied()).collect();
        Some(Self { period: *period as i64, phase: *phase as i64, ts: row.ts, counts })
    }

    /// How many parts began since the last write until `now`, at most one more than the window has.
    pub(super) fn steps(&self, now: i64) -> usize {
        let part = |at: i64| i128::from(at - self.phase) * (self.counts.len() as i128 - 1) / i128::from(self.period);
        (part(now) - part(self.ts)).clamp(0, self.counts.len() as i128) as usize
    }

    /// The length of a part, and the counts at `now`, oldest first.
    fn at(&self, now: i64) -> (i64, Vec<f64>) {
        let steps = self.steps(now);
        let mut counts = vec![0.0; steps];
        counts.extend(self.counts.iter().take(self.counts.len() - steps));
        counts.reverse();
        (self.period / (self.counts.len() as i64 - 1), counts)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    Exact,
    /// From a sample of the table.
    Estimated,
    /// Counting ended at this number.
    AtLeast,
}

/// The keys of a limit, and the jobs of a queue in one state, are counted up to this number.
pub(super) const COUNTED: i64 = 10_000;

/// A number of rows, keys or jobs, and how it was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "i64")]
pub(crate) struct Counted {
    pub(crate) number: u64,
    pub(crate) how: How,
}

impl Counted {
    pub(crate) const fn exact(number: u64) -> Self {
        Self { number, how: How::Exact }
    }

    /// The larger of a bounded count and an estimate.
    pub(super) fn or_estimate(self, estimate: f64) -> Self {
        let is_larger = self.how == How::AtLeast && estimate > self.number as f64;
        if is_larger { Self { number: estimate.round() as u64, how: How::Estimated } } else { self }
    }
}

impl From<i64> for Counted {
    /// A count that has ended early is above [`COUNTED`], or is -1 less than the number so far.
    fn from(counted: i64) -> Self {
        let how = if (0..=COUNTED).contains(&counted) { How::Exact } else { How::AtLeast };
        let number = if counted < 0 { !counted } else { counted.min(COUNTED) };
        Self { number: number.unsigned_abs(), how }
    }
}

impl std::fmt::Display for Counted {
    /// `1,234`, `about 1,234` (with `#`, for narrow columns: `~1,234`) or `1,234+`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = crate::text::grouped(self.number);
        match self.how {
            How::Exact => f.write_str(&number),
            How::Estimated if f.alternate() => write!(f, "~{number}"),
            How::Estimated => write!(f, "about {number}"),
            How::AtLeast => write!(f, "{number}+"),
        }
    }
}

/// How much of the table a snapshot is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub(crate) enum Coverage {
    /// All rows of a small table.
    Whole { rows: u64 },
    /// Some pages of a large table, other ones in each sample, and the keys that were busy or empty in earlier samples.
    Sampled { pages: u64, of_pages: u64, watched: u64 },
}

impl Default for Coverage {
    fn default() -> Self {
        Self::Whole { rows: 0 }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) at: i64,
    /// Microseconds since the first sample. Tokens taken before are not known.
    pub(crate) watched: i64,
    pub(crate) coverage: Coverage,
    pub(crate) limits: Vec<LimitView>,
    /// The names and definitions of limits without a row: every bucket is full.
    pub(crate) unused: Vec<(String, String)>,
    /// Says what could not be read, such as balances without the right to execute a function.
    pub(crate) note: Option<String>,
    /// Whether limits that have rows are not listed, because there are very many.
    pub(crate) is_cut: bool,
}

impl Snapshot {
    /// The time that amounts of tokens taken are of: `in the last 10 minutes`, or since the first sample.
    pub(crate) fn lately(&self) -> String {
        if self.watched >= BINS as i64 * BIN {
            return "in the last 10 minutes".to_owned();
        }
        format!("in {}, since pg-limiter began to watch", age(Duration::from_micros(self.watched.unsigned_abs())))
    }

    /// The limits with this part in their names. With a prefix: only those with keys that begin with it, and only these keys.
    pub(crate) fn filtered(&self, part: &str, key_prefix: &str) -> Vec<LimitView> {
        let mut limits: Vec<_> = self.limits.iter().filter(|limit| limit.name.contains(part)).cloned().collect();
        limits.retain_mut(|limit| {
            for keys in [&mut limit.busiest, &mut limit.emptiest, &mut limit.asked] {
                keys.retain(|key| key.bucket.key.starts_with(key_prefix));
            }
            key_prefix.is_empty() || limit.all_keys().next().is_some()
        });
        limits
    }

    /// All keys of [`Self::filtered`], each once, by key.
    pub(crate) fn keys(&self, part: &str, key_prefix: &str) -> Vec<KeyView> {
        let of_limit = |limit: LimitView| {
            let asked = limit.asked.into_iter().filter(|_| !key_prefix.is_empty());
            limit.busiest.into_iter().chain(limit.emptiest).chain(asked)
        };
        let keys = self.filtered(part, key_prefix).into_iter().flat_map(of_limit);
        let by_key = keys.map(|key| ((key.bucket.key.clone(), key.bucket.name.clone()), key));
        by_key.collect::<BTreeMap<_, _>>().into_values().collect()
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct LimitView {
    pub(crate) name: String,
    /// The definition, if it is known: `token_bucket, 10 per 1m`.
    pub(crate) limit: Option<String>,
    pub(crate) capacity: Option<f64>,
    pub(crate) keys: Counted,
    pub(crate) shards: i32,
    /// Tokens taken in each bin of the last ten minutes, oldest first.
    pub(crate) taken: Vec<f64>,
    pub(crate) per_minute: f64,
    /// At present: over about ten seconds, or since the first sample.
    pub(crate) per_second: f64,
    /// Whether the tokens were added up over all keys. Without a definition, what was taken from a new key is not known.
    pub(crate) taken_how: How,
    pub(crate) busiest: Vec<KeyView>,
    pub(crate) emptiest: Vec<KeyView>,
    /// Requested keys, whether or not they are busy or empty.
    pub(crate) asked: Vec<KeyView>,
}

impl LimitView {
    /// The keys of all lists. A key may be in several.
    pub(crate) fn all_keys(&mut self) -> impl Iterator<Item = &mut KeyView> {
        self.busiest.iter_mut().chain(&mut self.emptiest).chain(&mut self.asked)
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyView {
    #[serde(flatten)]
    pub(crate) bucket: BucketView,
    /// The balance at the time of the snapshot, if the definition is known. Slots: the free ones.
    pub(crate) balance: Option<f64>,
    pub(crate) capacity: Option<f64>,
    pub(crate) taken: Vec<f64>,
    pub(crate) per_minute: f64,
    pub(crate) per_second: f64,
}

impl KeyView {
    pub(crate) fn left(&self) -> Option<f64> {
        let (balance, capacity) = (self.balance?, self.capacity?);
        (capacity > 0.0).then(|| (balance / capacity).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::operate::live) fn row(value: f64, ts: i64, idle_at: i64, detail: Option<Vec<f64>>) -> Row {
        let (name, key) = ("a".to_owned(), "k".to_owned());
        Row { name, key, shard: 0, shards: 1, value, ts, idle_at, detail, balance: None }
    }

    #[test]
    fn rows_are_told_apart_without_their_limits() {
        let meaning = |value, idle_at, counts| BucketView::new(&[row(value, 0, idle_at, counts)], 0).unwrap().meaning;
        assert_eq!(meaning(3.0, 100, None), Meaning::TokensLeft);
        assert_eq!(meaning(-3.0, 100, None), Meaning::TokensLeft);
        assert_eq!(meaning(-100.0, 100, Some(vec![-2.0])), Meaning::Blocked);
        assert_eq!(meaning(3.0, 100, Some(vec![60.0, 0.0, 10.0, 1.0])), Meaning::TokensTaken);
        assert_eq!(meaning(3.0, 100, Some(vec![-1.0])), Meaning::SlotsInUse);
        assert!(BucketView::new(&[], 0).is_none());
    }

    #[test]
    fn a_limit_that_changed_may_use_a_bucket_that_is_stored_as_full() {
        const SECOND: i64 = 1_000_000;
        let length = std::time::Duration::from_secs;
        let slow = Limit::token_bucket(10, length(10)).capacity(20).build().unwrap();
        let window = Limit::fixed_window(10, length(10)).build().unwrap();
        let sliding = Limit::sliding_window(10, length(10)).resolution(1).build().unwrap();
        let used = |value, detail, limit, now: i64| {
            BucketView::new(&[row(value, 0, 1, detail)], now).unwrap().may_be_used(limit, now * SECOND)
        };
        let counts = || Some(vec![60.0, 0.0, 10.0, 1.0]);
        // 9 tokens and one more each second; 9 of a window of 10 s; a count that is in the window for 10 s.
        for (value, detail, limit, ends) in
            [(9.0, None, &slow, 11), (9.0, None, &window, 10), (3.0, counts(), &sliding, 10)]
        {
            assert!(used(value, detail.clone(), Some(limit), ends - 1) && !used(value, detail, Some(limit), ends));
        }
        assert!(!used(9.0, None, None, 1) && !used(3.0, Some(vec![-1.0]), Some(&slow), 1));
        assert!(BucketView::new(&[row(9.0, 0, 100, None)], 0).unwrap().may_be_used(None, 99), "it is stored as used");
    }

    #[test]
    fn leases_that_have_ended_are_left_out() {
        let bucket = row(3.0, 0, 90, Some(vec![-1.0, 50.0, -7.0, 1.0, 90.0, -8.0, 2.0]));
        let at = |now| BucketView::new(std::slice::from_ref(&bucket), now).unwrap();
        let [early, late] = [Lease { id: 7, slots: 1.0, ends_at: 50 }, Lease { id: 8, slots: 2.0, ends_at: 90 }];
        assert_eq!((at(49).leases, at(49).stored), (vec![early, late.clone()], 3.0));
        assert_eq!((at(50).leases, at(50).stored), (vec![late], 2.0));
        assert_eq!((at(90).leases, at(90).stored), (vec![], 0.0));
    }

    #[test]
    fn the_counts_of_a_sliding_window_move_with_time() {
        // Four parts of 25 each; 5 in the part of the last write, then 4, 3, 2 and 1.
        let bucket = row(5.0, 110, 300, Some(vec![100.0, 0.0, 10.0, 4.0, 3.0, 2.0, 1.0]));
        let at = |now| BucketView::new(std::slice::from_ref(&bucket), now).unwrap().window.unwrap();
        assert_eq!(at(124), (25, vec![1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(at(125), (25, vec![2.0, 3.0, 4.0, 5.0, 0.0]));
        assert_eq!(at(1000), (25, vec![0.0; 5]));
    }
}
