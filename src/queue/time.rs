//! Converts between the database's microseconds since the Unix epoch and the time types of the standard library.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::InvalidJob;
use crate::limit::LONGEST_PERIOD;

pub(super) fn from_micros(micros: i64) -> SystemTime {
    let length = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 { UNIX_EPOCH.checked_sub(length) } else { UNIX_EPOCH.checked_add(length) };
    time.unwrap_or(UNIX_EPOCH)
}

/// Rounds up, so that no job starts early. At most 36,525 days from now.
pub(super) fn soon(time: SystemTime, what: &'static str) -> Result<i64, InvalidJob> {
    if time.duration_since(SystemTime::now()).is_ok_and(|from_now| from_now > LONGEST_PERIOD) {
        return Err(InvalidJob::Time { what });
    }
    match time.duration_since(UNIX_EPOCH) {
        Ok(length) => ceil_micros(length).ok_or(InvalidJob::Time { what }),
        Err(_) => Ok(0), // Before the epoch, and long past.
    }
}

pub(super) fn length(length: Duration, what: &'static str) -> Result<i64, InvalidJob> {
    if length > LONGEST_PERIOD {
        return Err(InvalidJob::Time { what });
    }
    ceil_micros(length).ok_or(InvalidJob::Time { what })
}

/// Like `length`, but shortens a longer duration to the maximum.
pub(super) fn capped(length: Duration) -> i64 {
    ceil_micros(length.min(LONGEST_PERIOD)).unwrap_or(i64::MAX)
}

pub(super) fn wait(micros: Option<i64>) -> Duration {
    Duration::from_micros(micros.unwrap_or_default().max(0).unsigned_abs())
}

fn ceil_micros(length: Duration) -> Option<i64> {
    i64::try_from(length.as_nanos().div_ceil(1000)).ok()
}
