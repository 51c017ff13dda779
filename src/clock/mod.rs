//! The database's clock as this process follows it. Calls that wait until a time of the database compare and sleep by
//! [`LocalClock`]. It is [`Instant::now`], unless a `TestClock` (feature `testing`) has advanced the database's clock.

#[cfg(feature = "testing")]
mod advanced;
#[cfg(not(feature = "testing"))]
mod server_time;

use std::time::Instant;

/// The clock of one schema. Its moments never go back.
#[derive(Clone, Debug, Default)]
pub(crate) struct LocalClock {
    #[cfg(feature = "testing")]
    advanced: std::sync::Arc<advanced::Advanced>,
}

/// The clock as it was when this was created: later advances do not change it. A time in an answer of the database counts from
/// a reading before the call. So an advance during the call shortens a wait, and never is missed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PinnedClock {
    #[cfg(feature = "testing")]
    ahead: std::time::Duration,
}

/// The advances of a clock from a moment on.
pub(crate) struct Advances {
    #[cfg(feature = "testing")]
    advanced: tokio::sync::watch::Receiver<std::time::Duration>,
}

impl LocalClock {
    pub(crate) fn now(&self) -> Instant {
        self.pinned().now()
    }
}
