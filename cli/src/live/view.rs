//! The sampler's findings, as plain values.

use std::time::Duration;

use serde::Serialize;

use crate::live::bucket::BucketView;
use crate::live::history::{BIN, BINS};
use crate::text::age;

/// How a number was obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    #[default]
    Exact,
    /// From a sample of the table.
    Estimated,
    /// Counting ended at this number.
    AtLeast,
}

/// A number of rows, keys or jobs, and how it was obtained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counted {
    pub(crate) number: u64,
    pub(crate) how: How,
}

impl Counted {
    pub(crate) const fn exact(number: u64) -> Self {
        Self { number, how: How::Exact }
    }

    /// A count that ended after `most`.
    pub(crate) const fn up_to(most: u64, counted: u64) -> Self {
        if counted > most { Self { number: most, how: How::AtLeast } } else { Self::exact(counted) }
    }
}

impl std::fmt::Display for Counted {
    /// `1,234`, `about 1,234` or `1,234+`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = crate::text::grouped(self.number);
        match self.how {
            How::Exact => f.write_str(&number),
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

/// The limits in use at one moment, with their keys.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    /// The database's clock, in microseconds since the Unix epoch.
    pub(crate) at: i64,
    /// Microseconds since the first sample. Tokens taken before are not known.
    pub(crate) watched: i64,
    pub(crate) coverage: Coverage,
    pub(crate) limits: Vec<LimitView>,
    /// Limits that the limits file defines and that have no row: every bucket is full.
    pub(crate) unused: Vec<UnusedLimit>,
    /// Says what could not be read, such as balances without the right to execute a function.
    pub(crate) note: Option<String>,
    /// Whether names were left out, because there are very many.
    pub(crate) is_cut: bool,
}

impl Snapshot {
    /// The time that amounts of tokens taken are of: `in the last 10 minutes`, or since the first sample.
    pub(crate) fn lately(&self) -> String {
        if self.watched >= BINS as i64 * BIN {
            return "in the last 10 minutes".to_owned();
        }
        format!(
            "in {}, since pg-limiter began to watch",
            age(Duration::from_secs(self.watched.unsigned_abs() / 1_000_000))
        )
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct UnusedLimit {
    pub(crate) name: String,
    pub(crate) limit: String,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct LimitView {
    pub(crate) name: String,
    /// The definition, if the limits file has it: `token_bucket, 10 per 1m`.
    pub(crate) limit: Option<String>,
    pub(crate) capacity: Option<f64>,
    pub(crate) keys: Counted,
    /// The most rows that one of its buckets has.
    pub(crate) shards: i32,
    /// Tokens taken in each bin of the last ten minutes, oldest first.
    pub(crate) taken: Vec<f64>,
    pub(crate) per_minute: f64,
    /// At present: over about ten seconds, or since the first sample.
    pub(crate) per_second: f64,
    /// Whether the tokens taken were added up over all keys. Without the limit's definition, what was taken from a new key is not
    /// known.
    pub(crate) taken_how: How,
    pub(crate) busiest: Vec<KeyView>,
    pub(crate) emptiest: Vec<KeyView>,
    /// Requested keys, whether or not they are busy or empty.
    pub(crate) asked: Vec<KeyView>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyView {
    #[serde(flatten)]
    pub(crate) bucket: BucketView,
    /// The balance at the time of the snapshot, if the limits file defines the limit. Slots: the free ones.
    pub(crate) balance: Option<f64>,
    pub(crate) capacity: Option<f64>,
    /// Tokens taken in each bin, oldest first.
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

/// Which limits and keys to list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// A part of a limit's name; empty for all limits.
    pub(crate) limit: String,
    /// The keys begin with this text; empty for all keys.
    pub(crate) key_prefix: String,
}

impl Filter {
    pub(crate) const fn is_set(&self) -> bool {
        !self.limit.is_empty() || !self.key_prefix.is_empty()
    }
}

impl Snapshot {
    /// The limits whose names match, with the keys that match. Limits without such a key are left out if a prefix is given.
    pub(crate) fn filtered(&self, filter: &Filter) -> Vec<LimitView> {
        let begins = |key: &KeyView| key.bucket.key.starts_with(&filter.key_prefix);
        let mut limits = self.limits.clone();
        limits.retain(|limit| limit.name.contains(&filter.limit));
        for limit in &mut limits {
            limit.busiest.retain(begins);
            limit.emptiest.retain(begins);
            limit.asked.retain(begins);
        }
        if !filter.key_prefix.is_empty() {
            limits.retain(|limit| [&limit.busiest, &limit.emptiest, &limit.asked].iter().any(|keys| !keys.is_empty()));
        }
        limits
    }

    /// All listed keys of the matching limits, each once, by key.
    pub(crate) fn keys(&self, filter: &Filter) -> Vec<KeyView> {
        let mut keys: Vec<KeyView> = Vec::new();
        for limit in self.filtered(filter) {
            let mut of_limit: Vec<KeyView> = limit.busiest;
            let asked = limit.asked.into_iter().filter(|_| !filter.key_prefix.is_empty());
            for key in limit.emptiest.into_iter().chain(asked) {
                if !of_limit.iter().any(|other| other.bucket.key == key.bucket.key) {
                    of_limit.push(key);
                }
            }
            keys.extend(of_limit);
        }
        keys.sort_by(|a, b| (&a.bucket.key, &a.bucket.name).cmp(&(&b.bucket.key, &b.bucket.name)));
        keys
    }
}
