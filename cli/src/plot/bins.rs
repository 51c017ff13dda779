//! Divides time into bars of the same length. The lengths of bars, and of the steps of an axis, are round.

use crate::error::CliError;
use crate::text::{format_micros, grouped};

/// The most bars by default, about as many as a reader can distinguish.
const USUAL: i64 = 150;
const MOST: i64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bins {
    /// The start of the first bar, in microseconds since the Unix epoch.
    pub(crate) from: i64,
    /// The length of a bar, in microseconds.
    pub(crate) width: i64,
    pub(crate) len: usize,
}

impl Default for Bins {
    /// A single bar, for a recording without calls.
    fn default() -> Self {
        Self { from: 0, width: SECOND, len: 1 }
    }
}

impl Bins {
    /// Bars from the first time to the last, aligned to multiples of their width. The default width is a round length of at
    /// least `finest`, the resolution of the times.
    pub(crate) fn over(first: i64, last: i64, width: Option<i64>, finest: i64) -> Result<Self, CliError> {
        let span = last.saturating_sub(first).saturating_add(1);
        let usual = || if first == last { SECOND } else { round_up(ceil(span, USUAL).max(finest)) };
        let width = width.unwrap_or_else(usual);
        let from = first.div_euclid(width) * width;
        let len = last.saturating_sub(from) / width + 1;
        if len > MOST {
            return Err(CliError::usage(format!(
                "{} bars of {} are too many: at most {} can be drawn; use a longer --bin",
                grouped(len.unsigned_abs()),
                format_micros(width),
                grouped(MOST.unsigned_abs())
            )));
        }
        Ok(Self { from, width, len: usize::try_from(len).unwrap_or(1) })
    }

    /// The index of the bar that contains a time.
    pub(crate) fn place(&self, at: i64) -> usize {
        let place = at.saturating_sub(self.from).div_euclid(self.width);
        usize::try_from(place).unwrap_or_default().min(self.len - 1)
    }

    /// The start of a bar. For `len`, returns the end of the last bar.
    pub(crate) fn start(&self, place: usize) -> i64 {
        let place = i64::try_from(place).unwrap_or(i64::MAX);
        self.from.saturating_add(place.saturating_mul(self.width))
    }

    /// The end of the last bar.
    pub(crate) fn end(&self) -> i64 {
        self.start(self.len)
    }
}

/// The resolution of times of this resolution and of one more: the longest of 1 s, 100 ms, 10 ms and so on that divides all of
/// them. Shorter bars would be empty only because the times are rounded.
pub(crate) const fn finer(mut unit: i64, moment: i64) -> i64 {
    while moment % unit != 0 {
        unit /= 10;
    }
    unit
}

const fn ceil(number: i64, divisor: i64) -> i64 {
    number / divisor + (number % divisor > 0) as i64
}

const MILLISECOND: i64 = 1_000;
pub(crate) const SECOND: i64 = 1_000 * MILLISECOND;
pub(super) const MINUTE: i64 = 60 * SECOND;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// Units and their names, the longest first.
const UNITS: [(i64, &str); 6] =
    [(DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (MILLISECOND, "ms"), (1, "µs")];

/// Rounds a length up to a round one.
pub(super) fn round_up(micros: i64) -> i64 {
    let wanted = micros.max(1);
    let within = |parts: &[i64], unit: i64| parts.iter().map(|part| part * unit).find(|length| *length >= wanted);
    if wanted <= SECOND / 2 {
        return decimal(wanted, 1);
    }
    within(&[1, 2, 5, 10, 15, 30], SECOND)
        .or_else(|| within(&[1, 2, 5, 10, 15, 30], MINUTE))
        .or_else(|| within(&[1, 2, 3, 6, 12], HOUR))
        .unwrap_or_else(|| decimal(wanted, DAY))
}

/// The first of 1, 2, 5, 10, 20, 50, .. times the unit that is not shorter than `wanted`.
fn decimal(wanted: i64, unit: i64) -> i64 {
    let mut power = unit;
    loop {
        for digit in [1, 2, 5] {
            match power.checked_mul(digit) {
                Some(length) if length < wanted => {}
                Some(length) => return length,
                None => return i64::MAX,
            }
        }
        power = power.saturating_mul(10);
    }
}

/// The longest unit that divides this length.
pub(super) fn unit(step: i64) -> (i64, &'static str) {
    UNITS.into_iter().find(|(unit, _)| step % unit == 0).unwrap_or((1, "µs"))
}

/// Formats a length: `s`, `10 min`, `2 days`.
pub(super) fn length_name(length: i64) -> String {
    let (unit, name) = unit(length);
    match length / unit {
        1 => if name == "days" { "day" } else { name }.to_owned(),
        units => format!("{units} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::YEARS;

    fn bins(first: i64, last: i64) -> Bins {
        Bins::over(first, last, None, 1).unwrap()
    }

    #[test]
    fn five_minutes_are_150_bars_of_two_seconds() {
        assert_eq!(bins(0, 300 * SECOND - 1), Bins { from: 0, width: 2 * SECOND, len: 150 });
    }

    #[test]
    fn no_bar_is_shorter_than_the_resolution_unless_requested() {
        let minute = |width, finest| Bins::over(0, 60 * SECOND, width, finest).unwrap().width;
        assert_eq!(
            [minute(None, 1), minute(None, SECOND), minute(Some(SECOND / 2), SECOND)],
            [500_000, SECOND, 500_000]
        );
        let resolution = |moments: &[i64]| moments.iter().copied().fold(SECOND, finer);
        assert_eq!(resolution(&[3 * SECOND, -SECOND, 0]), SECOND);
        assert_eq!(resolution(&[3 * SECOND, 2_500_000]), 100_000);
        assert_eq!([resolution(&[1_767_225_600_001_000]), resolution(&[7]), resolution(&[])], [1_000, 1, SECOND]);
    }

    #[test]
    fn a_single_moment_has_one_bar() {
        let one = bins(-1, -1);
        assert_eq!(one, Bins { from: -SECOND, width: SECOND, len: 1 });
        assert_eq!((one.place(-1), one.start(0), one.end()), (0, -SECOND, 0));
    }

    #[test]
    fn four_centuries_have_fewer_than_150_bars() {
        let all = bins(*YEARS.start(), *YEARS.end());
        assert!(all.width == 1000 * DAY && all.len < 150 && all.end() > *YEARS.end(), "{all:?}");
    }

    #[test]
    fn every_moment_is_within_its_bar() {
        for (first, last) in [(0, 1), (7, 12_345), (-3 * HOUR, 5), (1_431_857_103_000_000, 1_431_943_503_000_000)] {
            let bins = bins(first, last);
            assert!(bins.from <= first && bins.end() > last && bins.len <= 151, "{bins:?}");
            for at in [first, last, first + (last - first) / 3] {
                let place = bins.place(at);
                assert!(bins.start(place) <= at && at < bins.start(place + 1), "{at} in {bins:?}");
            }
        }
    }

    #[test]
    fn too_many_bars_are_rejected() {
        let error = Bins::over(0, 300 * SECOND, Some(1000), 1).unwrap_err().to_string();
        assert!(error.contains("300,001 bars of 1ms") && error.contains("at most 2,000"), "{error}");
    }

    #[test]
    fn lengths_are_rounded_up_to_round_numbers_of_a_unit() {
        let lengths = [0, 3, 400_000, 600_000, 7 * SECOND, 31 * SECOND, 4 * HOUR, 13 * HOUR, 3 * DAY, 973 * DAY];
        let rounded = [1, 5, 500_000, SECOND, 10 * SECOND, MINUTE, 6 * HOUR, DAY, 5 * DAY, 1000 * DAY];
        assert_eq!(lengths.map(round_up), rounded);
        assert_eq!(round_up(i64::MAX), i64::MAX);
    }

    #[test]
    fn each_step_is_named_in_a_fitting_unit() {
        assert_eq!([1, 500_000, 90 * SECOND, 2 * DAY].map(|step| unit(step).1), ["µs", "ms", "s", "days"]);
        assert_eq!([SECOND, 10 * MINUTE, DAY, 2 * DAY].map(length_name), ["s", "10 min", "day", "2 days"]);
    }
}
