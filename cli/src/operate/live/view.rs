//! The sampler's findings, as plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::operate::live::bucket::BucketView;
use crate::operate::live::taken::{BIN, BINS};
use crate::text::age;

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
    /// A count that ended after [`COUNTED`], or after another number: that is negative then.
    fn from(counted: i64) -> Self {
        let how = if (0..=COUNTED).contains(&counted) { How::Exact } else { How::AtLeast };
        Self { number: counted.min(COUNTED).unsigned_abs(), how }
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
    /// The balance as a fraction of the capacity.
    pub(crate) fn left(&self) -> Option<f64> {
        let (balance, capacity) = (self.balance?, self.capacity?);
        (capacity > 0.0).then(|| (balance / capacity).clamp(0.0, 1.0))
    }
}
