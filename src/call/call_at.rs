use std::time::{SystemTime, UNIX_EPOCH};

use crate::call::{Call, Op};

/// A call with the time at which it is decided, for [`TransactionLimiter::decide_at`](crate::TransactionLimiter::decide_at).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallAt {
    /// The time, in whole microseconds, from the year 1800 to 2199. Fractions of a microsecond are cut off.
    pub at: SystemTime,
    /// What the call does.
    pub op: Op,
    /// The call.
    pub call: Call,
}

impl CallAt {
    /// A call at this time.
    pub fn new(at: SystemTime, op: Op, call: impl Into<Call>) -> Self {
        Self { at, op, call: call.into() }
    }

    /// In microseconds since the Unix epoch.
    pub(crate) fn micros(&self) -> i64 {
        match self.at.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
        }
    }
}
