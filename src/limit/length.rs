//! Lengths of time: whole microseconds inside, "1h 30m" outside.

use std::time::Duration;

/// Whole microseconds, or `None` if the length has a finer part or is too long to count.
pub(crate) fn micros(length: Duration) -> Option<i64> {
    if !length.subsec_nanos().is_multiple_of(1000) {
        return None;
    }
    i64::try_from(length.as_micros()).ok()
}

/// Reads "1500ms", "7d", "1h 30m".
pub(crate) fn parse_micros(text: &str) -> Result<i64, String> {
    let length = humantime::parse_duration(text).map_err(|error| {
        format!("\"{text}\" is not a length of time like \"1500ms\", \"1h 30m\" or \"7d\": {error}")
    })?;
    micros(length).ok_or_else(|| format!("\"{text}\" is not a whole number of microseconds"))
}

/// The reverse of [`parse_micros`].
pub(crate) fn format_micros(micros: i64) -> String {
    humantime::format_duration(Duration::from_micros(micros.unsigned_abs())).to_string()
}
