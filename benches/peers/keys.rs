//! Which keys are asked for. The texts are made beforehand; picking one allocates nothing.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Of every key, so that they can be found again on a Redis that is not ours.
pub(crate) const PREFIX: &str = "pg-limiter-peers:";

pub(crate) type Keys = Arc<[Arc<str>]>;

pub(crate) fn key(name: impl std::fmt::Display) -> Arc<str> {
    format!("{PREFIX}{name}").into()
}

pub(crate) fn numbered(count: usize) -> Keys {
    (0..count).map(key).collect()
}

/// Numbered keys that no other work has: on Redis a key has one type.
pub(crate) fn numbered_of(work: &str, count: usize) -> Keys {
    (0..count).map(|number| key(format_args!("{work}:{number}"))).collect()
}

/// The key of the second row that belongs to a key.
pub(crate) fn second(key: &str) -> String {
    format!("{key}:second")
}

/// One of the keys, always the same one for a key of others: its organisation, for example.
pub(crate) fn partner<'a>(keys: &'a Keys, of: &str) -> &'a Arc<str> {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    &keys[(hasher.finish() % keys.len() as u64) as usize]
}

/// In another order.
pub(crate) fn shuffled(keys: &Keys) -> Keys {
    let mut keys = keys.to_vec();
    let mut random = Random::default();
    for place in (1..keys.len()).rev() {
        keys.swap(place, random.below(place + 1));
    }
    keys.into()
}

/// How keys are picked.
#[derive(Clone, Debug)]
pub(crate) enum Picks {
    /// Each as likely as the others.
    Uniform(Keys),
    /// The n-th with a likelihood of 1/n (s = 1).
    Zipf(Keys, Arc<[f64]>),
    /// One after the other, again from the first, this many in all.
    InTurn(Keys, usize),
}

impl Picks {
    pub(crate) fn one(name: &str) -> Self {
        Self::Uniform(Arc::new([key(name)]))
    }

    pub(crate) fn zipf(keys: Keys) -> Self {
        let mut sum = 0.0;
        let up_to = (1..=keys.len()).map(|n| {
            sum += 1.0 / n as f64;
            sum
        });
        let up_to = up_to.collect();
        Self::Zipf(keys, up_to)
    }

    /// Every key once.
    pub(crate) fn each_once(keys: Keys) -> Self {
        let count = keys.len();
        Self::InTurn(keys, count)
    }

    pub(crate) const fn end(&self) -> bool {
        matches!(self, Self::InTurn(..))
    }

    /// For each caller; together they pick as planned.
    pub(crate) fn for_callers(&self, callers: usize) -> Vec<Picker> {
        let picked = Arc::new(AtomicUsize::new(0));
        let picker = |_| Picker { picks: self.clone(), picked: picked.clone(), random: Random::default() };
        (0..callers).map(picker).collect()
    }
}

/// The keys of one caller.
#[derive(Debug)]
pub(crate) struct Picker {
    picks: Picks,
    picked: Arc<AtomicUsize>,
    random: Random,
}

impl Picker {
    pub(crate) fn pick(&mut self) -> Option<&Arc<str>> {
        match &self.picks {
            Picks::Uniform(keys) => keys.get(self.random.below(keys.len())),
            Picks::Zipf(keys, up_to) => {
                let part = self.random.unit() * up_to.last()?;
                keys.get(up_to.partition_point(|sum| *sum <= part))
            }
            Picks::InTurn(keys, count) => {
                let turn = self.picked.fetch_add(1, Ordering::Relaxed);
                if turn < *count { keys.get(turn % keys.len()) } else { None }
            }
        }
    }
}

/// SplitMix64 (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014), another sequence
/// each time.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        static MADE: AtomicU64 = AtomicU64::new(1);
        let mut seed = Self(MADE.fetch_add(1, Ordering::Relaxed));
        Self(seed.bits())
    }
}

impl Random {
    const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// From 0 to below 1.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }
}
