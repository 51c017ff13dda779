//! The times of access logs.

use jiff::Timestamp;
use jiff::fmt::strtime;

use crate::replay::events::YEARS;

/// The time of the common log format: `17/May/2015:10:05:03 +0000`.
pub(super) const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";

/// How a format writes times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TimeForm {
    /// As `strftime` with this format.
    Strftime(String),
    /// ISO 8601, with an offset from UTC.
    Iso,
    /// The number of these units since the Unix epoch; so many units are a second.
    Number(u32),
    /// Any of these, as JSON has them.
    Any,
}

impl TimeForm {
    /// Reads a time, in microseconds since the Unix epoch.
    pub(super) fn micros(&self, text: &str) -> Option<i64> {
        let micros = match self {
            Self::Strftime(format) => {
                strtime::parse(format, text).and_then(|time| time.to_timestamp()).ok()?.as_microsecond()
            }
            Self::Iso => text.parse::<Timestamp>().ok()?.as_microsecond(),
            Self::Number(unit) => scaled(text.parse().ok().filter(|number: &f64| number.is_finite())?, *unit),
            Self::Any => return any(text),
        };
        Some(micros).filter(|micros| YEARS.contains(micros))
    }

    /// An example of such a time, for messages.
    pub(super) fn example(&self) -> &str {
        match self {
            Self::Strftime(format) if format == COMMON => "17/May/2015:10:05:03 +0000",
            Self::Strftime(format) => format,
            Self::Iso | Self::Any => "2015-05-17T10:05:03Z",
            Self::Number(1) => "1431857103.000",
            Self::Number(_) => "1431857103000",
        }
    }
}

fn any(text: &str) -> Option<i64> {
    match text.parse::<f64>() {
        Ok(number) => TimeForm::Number(unit(number)).micros(text),
        Err(_) => TimeForm::Iso.micros(text).or_else(|| TimeForm::Strftime(COMMON.to_owned()).micros(text)),
    }
}

/// The unit of a number since the epoch: each one is the only one that gives a year between 1973 and 5138.
fn unit(number: f64) -> u32 {
    match number.abs() {
        seconds if seconds < 1e11 => 1,
        millis if millis < 1e14 => 1_000,
        micros if micros < 1e17 => 1_000_000,
        _ => 1_000_000_000,
    }
}

/// The cast saturates, and the range of years rejects such numbers.
fn scaled(number: f64, unit: u32) -> i64 {
    (number * (1_000_000.0 / f64::from(unit))).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_to_the_same_time() {
        let common = TimeForm::Strftime(COMMON.to_owned());
        for (form, text) in [
            (&common, "17/May/2015:12:05:03 +0200"),
            (&TimeForm::Iso, "2015-05-17T10:05:03Z"),
            (&TimeForm::Iso, "2015-05-17T12:05:03+02:00"),
            (&TimeForm::Iso, "2015-05-17T12:05:03.000+0200"),
            (&TimeForm::Number(1), "1431857103.000"),
            (&TimeForm::Number(1_000), "1431857103000"),
            (&TimeForm::Any, "17/May/2015:10:05:03 +0000"),
            (&TimeForm::Any, "2015-05-17T10:05:03.000000Z"),
            (&TimeForm::Any, "1431857103"),
            (&TimeForm::Any, "1431857103.0"),
            (&TimeForm::Any, "1431857103000"),
            (&TimeForm::Any, "1431857103000000"),
            (&TimeForm::Any, "1431857103000000000"),
        ] {
            assert_eq!(form.micros(text), Some(1_431_857_103_000_000), "{form:?} of {text}");
        }
        for text in ["", "yesterday", "2015-05-17", "2015-05-17T10:05:03", "NaN", "inf", "1e300"] {
            assert_eq!(TimeForm::Any.micros(text), None, "{text}");
        }
    }
}
