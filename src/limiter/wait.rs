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
    /// The longest time to wait for the tokens. If it is zero, the tokens are available now or the call is denied. The
    /// time that the database takes to answer is not included; the deadline of the [`RetryPolicy`](crate::RetryPolicy)
    /// limits it. Values above 365 days mean 365 days.
    pub max_wait: Duration,
    /// The random delay of a waiter, so that waiters for the same moment do not all come at once. It is at most this
    /// fraction, from 0 to 1, of the time in which the call's tokens arrive (or of the wait, if that is shorter). No
    /// waiter goes ahead before its tokens are available, or after `max_wait`. Not used where each waiter has its own
    /// moment, as in a token bucket that can reserve.
    pub jitter: f64,
}

impl WaitConfig {
    /// Waits for at most this long; the defaults for everything else.
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
