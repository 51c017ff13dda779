use std::time::Duration;

/// How a process remembers denials. Until its `retry_after` has passed, the same call is denied again without asking
/// the database.
///
/// This is exact as long as tokens are only taken. A credit or a reset makes the wait shorter. If another process or a
/// caller's transaction makes one, this process does not notice it, and may still deny the call for up to `max_age`.
///
/// # Default
/// - `max_keys`: 10,000
/// - `max_age`: 1 second
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DenialMemory {
    /// The most keys to remember, at about 300 bytes each. 0 remembers none. When the memory is full, expired denials
    /// are dropped first, then any others.
    pub max_keys: usize,
    /// The longest time to remember a denial, even if its `retry_after` is longer. Zero remembers none.
    pub max_age: Duration,
}

impl Default for DenialMemory {
    fn default() -> Self {
        Self { max_keys: 10_000, max_age: Duration::from_secs(1) }
    }
}
