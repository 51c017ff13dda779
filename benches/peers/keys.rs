//! The keys of the calls. Their texts are created in advance, so that picking a key does not allocate.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fastrand::Rng;

/// The prefix of every key, so that the keys can be removed from a Redis that the run did not start.
pub(crate) const PREFIX: &str = "pg-limiter-peers:";

pub(crate) type Keys = Arc<[Arc<str>]>;

pub(crate) fn key(name: impl std::fmt::Display) -> Arc<str> {
    format!("{PREFIX}{name}").into()
}

pub(crate) fn numbered(count: usize) -> Keys {
    (0..count).map(key).collect()
}

/// Numbered keys that no other workload uses, because a key has one type on Redis.
pub(crate) fn numbered_of(work: &str, count: usize) -> Keys {
    (0..count).map(|number| key(format_args!("{work}:{number}"))).collect()
}

/// The key of the second row of a key.
pub(crate) fn second(key: &str) -> String {
    format!("{key}:second")
}

/// The key among `keys` that belongs to the key `of`: for example, the organisation of a user. It is always the same one.
pub(crate) fn partner<'a>(keys: &'a Keys, of: &str) -> &'a Arc<str> {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    &keys[(hasher.finish() % keys.len() as u64) as usize]
}

/// The keys in random order.
pub(crate) fn shuffled(keys: &Keys) -> Keys {
    let mut keys = keys.to_vec();
    let mut random = Rng::new();
    for place in (1..keys.len()).rev() {
        keys.swap(place, random.usize(..place + 1));
    }
    keys.into()
}

/// How keys are picked.
#[derive(Clone, Debug)]
pub(crate) enum Picks {
    /// All keys are equally likely.
    Uniform(Keys),
    /// The probability of the n-th key is proportional to 1/n (Zipf's law with s = 1).
    Zipf(Keys, Arc<[f64]>),
    /// One key after another, starting again after the last, this many picks in all.
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

    /// Picks every key once.
    pub(crate) fn each_once(keys: Keys) -> Self {
        let count = keys.len();
        Self::InTurn(keys, count)
    }

    pub(crate) const fn end(&self) -> bool {
        matches!(self, Self::InTurn(..))
    }

    /// A picker for each caller. Together, the callers pick as `self` describes.
    pub(crate) fn for_callers(&self, callers: usize) -> Vec<Picker> {
        let picked = Arc::new(AtomicUsize::new(0));
        let picker = |_| Picker { picks: self.clone(), picked: picked.clone(), random: Rng::new() };
        (0..callers).map(picker).collect()
    }
}

/// The keys of one caller.
#[derive(Debug)]
pub(crate) struct Picker {
    picks: Picks,
    picked: Arc<AtomicUsize>,
    random: Rng,
}

impl Picker {
    pub(crate) fn pick(&mut self) -> Option<&Arc<str>> {
        match &self.picks {
            Picks::Uniform(keys) => keys.get(self.random.usize(..keys.len())),
            Picks::Zipf(keys, up_to) => {
                let part = self.random.f64() * up_to.last()?;
                keys.get(up_to.partition_point(|sum| *sum <= part))
            }
            Picks::InTurn(keys, count) => {
                let turn = self.picked.fetch_add(1, Ordering::Relaxed);
                if turn < *count { keys.get(turn % keys.len()) } else { None }
            }
        }
    }
}
