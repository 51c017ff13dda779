use std::time::Duration;

/// How denials are remembered within the process: the same call is denied again without asking the database, until the
/// moment at which the denial said to come back.
///
/// That is exact as long as tokens are only taken. What makes a wait shorter, a credit or a reset, is missed if another
/// process or a transaction does it: then a call may still be denied for `max_age` at most.
///
/// # Default
/// - `max_keys`: 10,000
/// - `max_age`: 1 second
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenialMemory {
    /// The most keys remembered, at some 300 bytes each; 0: none. When there are more, those go first whose denial has
    /// ended, then any.
    pub max_keys: usize,
    /// The longest time for which a denial is remembered, even if its wait is longer; 0: not at all.
    pub max_age: Duration,
}

impl Default for DenialMemory {
    fn default() -> Self {
        Self { max_keys: 10_000, max_age: Duration::from_secs(1) }
    }
}
