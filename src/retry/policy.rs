use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the limiter's own transactions are tried again after a conflict or a lost connection: exponential backoff with
/// jitter, bounded in number and time. Nothing is ever retried within a caller's transaction.
///
/// # Default
/// - `max_attempts`: 50
/// - `initial`: 1 ms
/// - `max`: 100 ms
/// - `multiplier`: 2
/// - `jitter`: 0.5
/// - `deadline`: 5 s
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// The most attempts, the first one included. 0 is taken as 1.
    pub max_attempts: u32,
    /// The pause after the first attempt.
    pub initial: Duration,
    /// The longest pause.
    pub max: Duration,
    /// By how much each pause is longer than the one before. Below 1 is taken as 1.
    pub multiplier: f64,
    /// Each pause is varied by up to this part of itself, up or down, so that rivals do not meet again: 0 to 1.
    pub jitter: f64,
    /// The longest time for all of it: waiting for a connection, the attempts and the pauses. For a unit of work, no
    /// attempt begins after it.
    pub deadline: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 50,
            initial: Duration::from_millis(1),
            max: Duration::from_millis(100),
            multiplier: 2.0,
            jitter: 0.5,
            deadline: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// One attempt; the deadline of the default.
    pub fn none() -> Self {
        Self { max_attempts: 1, ..Self::default() }
    }
}
