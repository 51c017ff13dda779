use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the limiter's own transactions are retried after a conflict or a lost connection: exponential backoff with
/// jitter, limited in number and time. Calls within a caller's transaction are never retried.
///
/// # Default
/// - `max_attempts`: 50
/// - `initial`: 1 ms
/// - `max`: 100 ms
/// - `multiplier`: 2
/// - `jitter`: 0.5
/// - `deadline`: 5 s
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// The most attempts, including the first one. 0 means 1.
    pub max_attempts: u32,
    /// The pause after the first attempt.
    pub initial: Duration,
    /// The longest pause.
    pub max: Duration,
    /// The factor by which each pause is longer than the one before. Values below 1 mean 1.
    pub multiplier: f64,
    /// The random part of each pause: it varies by up to this fraction of itself, up or down, so that rivals do not
    /// collide again. From 0 to 1.
    pub jitter: f64,
    /// The longest time for the whole call: waiting for a connection, the attempts and the pauses. In a unit of work,
    /// no attempt begins after it.
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
    /// A policy of one attempt, with the default deadline.
    #[must_use]
    pub fn none() -> Self {
        Self { max_attempts: 1, ..Self::default() }
    }
}
