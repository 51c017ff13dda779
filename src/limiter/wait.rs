use std::time::Duration;

/// How [`Limiter::until_ready`](crate::Limiter::until_ready) waits.
///
/// ```
/// # use std::time::Duration;
/// use pg_limiter::WaitConfig;
/// let mut wait = WaitConfig::up_to(Duration::from_secs(2));
/// wait.jitter = 0.5;
/// ```
///
/// # Default
/// - `max_wait`: 30 s
/// - `jitter`: 0.1
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct WaitConfig {
    /// The longest time to wait for the tokens. Zero: they are there, or the call is denied. What the database takes to answer
    /// comes on top, and has the deadline of the [`RetryPolicy`](crate::RetryPolicy). A year stands for ever.
    pub max_wait: Duration,
    /// By how much a waiter may come later than it could, so that those who wait for the same moment do not all come at
    /// once: a part of the time in which its tokens arrive (or of the wait, if that is shorter), from 0 to 1; how much
    /// of it is chance. It never makes anybody come early, or later than `max_wait`. Not used where each has a moment of its
    /// own, as in a token bucket that can reserve.
    pub jitter: f64,
}

impl WaitConfig {
    /// Waits for so long at most; the defaults for everything else.
    #[must_use]
    pub fn up_to(max_wait: Duration) -> Self {
        Self { max_wait, ..Self::default() }
    }
}

impl Default for WaitConfig {
    fn default() -> Self {
        Self { max_wait: Duration::from_secs(30), jitter: 0.1 }
    }
}

impl From<Duration> for WaitConfig {
    fn from(max_wait: Duration) -> Self {
        Self::up_to(max_wait)
    }
}
