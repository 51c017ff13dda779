use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The id of a lease, which holds slots of concurrency limits: see [`Call::lease`](crate::Call::lease). A number from 2 to
/// 9,007,199,254,740,991 (2^53 - 1), which every JSON library can represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(i64);

impl LeaseId {
    const MOST: i64 = (1 << 53) - 1;

    /// Returns a random id. It is practically unique.
    pub fn random() -> Self {
        // Each `RandomState` has its own keys.
        Self((RandomState::new().hash_one(()) >> 11).cast_signed().max(2))
    }

    /// Returns the id with this number; `None` if the number is out of range.
    pub const fn new(id: i64) -> Option<Self> {
        if id >= 2 && id <= Self::MOST { Some(Self(id)) } else { None }
    }

    /// Returns the number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
