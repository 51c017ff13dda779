use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Formats a time as RFC 3339 in UTC, to the millisecond.
pub(super) fn human(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| format!("{time:.3}")).unwrap_or_else(|_| far(time))
}

/// Formats a time as RFC 3339 in UTC, exactly.
pub(super) fn exact(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| time.to_string()).unwrap_or_else(|_| far(time))
}

/// Formats a time after the year 9999 as seconds since the Unix epoch: `@253402300800`.
fn far(time: SystemTime) -> String {
    format!("@{}", time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_rfc_3339_as_long_as_there_is_a_year() {
        let time = UNIX_EPOCH + Duration::from_micros(1_767_225_600_999_999);
        assert_eq!([human(time), exact(time)], ["2026-01-01T00:00:00.999Z", "2026-01-01T00:00:00.999999Z"]);
        assert_eq!(human(UNIX_EPOCH), "1970-01-01T00:00:00.000Z");
        let far = UNIX_EPOCH + Duration::from_secs(253_402_300_800);
        assert_eq!([human(far), exact(far)], ["@253402300800", "@253402300800"]);
    }
}
