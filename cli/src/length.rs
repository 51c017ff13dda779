//! Lengths of time on the command line, in microseconds.

use std::time::Duration;

use pg_limiter::{Length, Limit};

pub(crate) fn parse_length(text: &str) -> Result<Duration, String> {
    text.parse::<Length>().map(Duration::from).map_err(|error| error.to_string())
}

pub(crate) fn parse_micros(text: &str) -> Result<i64, String> {
    let length: Length = text.parse().map_err(|error: pg_limiter::InvalidLength| error.to_string())?;
    i64::try_from(length.as_micros()).map_err(|error| error.to_string())
}

pub(crate) fn format_micros(micros: i64) -> String {
    Length::from_micros(micros.unsigned_abs()).to_string()
}

pub(crate) fn period_micros(limit: &Limit) -> i64 {
    i64::try_from(limit.period().as_micros()).unwrap_or(i64::MAX)
}
