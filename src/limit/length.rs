//! Durations: whole microseconds inside the crate, text such as "1h 30m" in limits files and the tool.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::limit::InvalidLimit;

/// A duration as limits files write it: "1500ms", "1h 30m", "7d".
///
/// Units are w, d, h, m, s, ms and us. Months and years are refused, because they differ in length. A precision limits how many parts
/// are printed: `{:.1}` prints "1h 30m" as "1h".
///
/// ```
/// use std::time::Duration;
/// use pg_limiter::Length;
///
/// let length: Length = "90m".parse()?;
/// assert_eq!(Duration::from(length), Duration::from_secs(5400));
/// assert_eq!(length.to_string(), "1h 30m");
/// assert!("1 month".parse::<Length>().is_err());
/// # Ok::<(), pg_limiter::InvalidLength>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Length(u64);

/// A text that is not a [`Length`], with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidLength(String);

impl From<InvalidLength> for InvalidLimit {
    fn from(invalid: InvalidLength) -> Self {
        Self::new(invalid.0)
    }
}

impl Length {
    /// A duration of this many microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The duration in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }
}

impl From<Duration> for Length {
    /// Cuts off fractions of a microsecond.
    fn from(length: Duration) -> Self {
        Self(u64::try_from(length.as_micros()).unwrap_or(u64::MAX))
    }
}

impl From<Length> for Duration {
    fn from(length: Length) -> Self {
        Self::from_micros(length.0)
    }
}

impl FromStr for Length {
    type Err = InvalidLength;

    fn from_str(text: &str) -> Result<Self, InvalidLength> {
        parse_micros(text).map(|micros| Self(micros.unsigned_abs())).map_err(InvalidLength)
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_parts(self.0, f.precision().unwrap_or(UNITS.len())))
    }
}

/// The units in microseconds, longest first. Months and years are left out: they are not fixed durations.
const UNITS: [(u64, &str); 6] =
    [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];

/// Whole microseconds; `None` if the duration has a fraction of a microsecond or is too long to count.
pub(crate) fn micros(length: Duration) -> Option<i64> {
    if !length.subsec_nanos().is_multiple_of(1000) {
        return None;
    }
    i64::try_from(length.as_micros()).ok()
}

/// Parses text such as "1500ms", "7d" or "1h 30m". Rejects months and years.
pub(crate) fn parse_micros(text: &str) -> Result<i64, String> {
    let length = humantime::parse_duration(text).map_err(|error| {
        let reason = match error {
            humantime::DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => {
                format!("unknown unit \"{unit}\"; the units are w, d, h, m, s, ms and us")
            }
            error => error.to_string(),
        };
        format!("\"{text}\" is not a duration such as \"1500ms\", \"1h 30m\" or \"7d\": {reason}")
    })?;
    if has_months(text) {
        return Err(format!(
            "\"{text}\" is not a fixed duration, because months and years differ in length; use days or shorter units, such \
             as \"30d\" (\"M\" is a month, \"m\" is a minute)"
        ));
    }
    micros(length).ok_or_else(|| match length.subsec_nanos() % 1000 {
        0 => format!("\"{text}\" is too long; use at most 36525 days"),
        _ => format!("\"{text}\" is not a whole number of microseconds; round it to one"),
    })
}

/// Whether a valid duration contains months or years.
fn has_months(text: &str) -> bool {
    text.split(|c: char| !c.is_alphabetic()).any(|unit| unit == "M" || unit.starts_with("mo") || unit.starts_with('y'))
}

/// Formats microseconds as text that [`parse_micros`] reads: "40d 12h".
pub(crate) fn format_micros(micros: i64) -> String {
    format_parts(micros.unsigned_abs(), UNITS.len())
}

/// Formats only the `most` largest units of a duration: "40d 12h".
fn format_parts(micros: u64, most: usize) -> String {
    let mut left = micros;
    let mut parts = Vec::with_capacity(most);
    for (unit, name) in UNITS {
        let number = left / unit;
        left %= unit;
        if number > 0 && parts.len() < most {
            parts.push(format!("{number}{name}"));
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_lengths_are_parsed_to_the_same_value() {
        let hour = 3_600_000_000;
        let lengths = [
            (0, "0s"),
            (1, "1us"),
            (1_500_000, "1s 500ms"),
            (90 * 60_000_000, "1h 30m"),
            (24 * hour, "1d"),
            (24 * hour * 400 + 7, "400d 7us"),
        ];
        for (micros, text) in lengths {
            assert_eq!((format_micros(micros), parse_micros(text)), (text.to_owned(), Ok(micros)));
        }
        assert_eq!(format_parts(944_232_370_410, 2), "10d 22h");
        assert_eq!(parse_micros("1 week 2days 3hrs 4min 5sec 6msec 7usec"), Ok(9 * 24 * hour + 11_045_006_007));
    }

    /// With every name that the parser accepts for them.
    #[test]
    fn months_and_years_are_rejected() {
        for unit in ["months", "month", "M", "years", "year", "yrs", "yr", "y"] {
            for text in [format!("1{unit}"), format!("1 {unit}"), format!("2d 1{unit} 3s"), format!("0{unit}")] {
                assert!(humantime::parse_duration(&text).is_ok(), "{text}");
                let message = parse_micros(&text).expect_err(&text);
                assert!(message.contains(&format!("{text:?}")) && message.contains("\"30d\""), "{message}");
            }
        }
        for unit in ["nanos", "ms", "millis", "m", "min", "mins", "minute", "minutes", "days", "weeks", "wk"] {
            assert!(!has_months(&format!("1{unit}")), "{unit}");
        }
    }
}
