//! The axes of tokens and of time, and their marks. The lengths of bars, and of the steps of an axis, are round.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use crate::error::{CliError, Result};
use crate::text::{format_micros, grouped, plain};

/// The most bars by default, about as many as a reader can distinguish.
const USUAL: i64 = 150;
const MOST_BARS: i64 = 2_000;

/// Bars of the same width, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bins {
    pub(crate) from: i64,
    pub(crate) width: i64,
    pub(crate) len: usize,
}

impl Bins {
    /// Aligns bars to multiples of their width, by default a round length of at least `finest`, the resolution of the times.
    pub(crate) fn over(first: i64, last: i64, width: Option<i64>, finest: i64) -> Result<Self> {
        let span = last.saturating_sub(first).saturating_add(1);
        let usual = || if first == last { SECOND } else { round_up(((span - 1) / USUAL + 1).max(finest)) };
        let width = width.unwrap_or_else(usual);
        let from = first.div_euclid(width) * width;
        let len = last.saturating_sub(from) / width + 1;
        let [bars, most] = [len, MOST_BARS].map(|bars| grouped(bars.unsigned_abs()));
        let each = format_micros(width);
        let why = format_args!("{bars} bars of {each} are too many: at most {most} can be drawn; use a longer --bin");
        CliError::refuse_if(len > MOST_BARS, why)?;
        Ok(Self { from, width, len: usize::try_from(len).unwrap_or(1) })
    }

    pub(crate) fn place(&self, at: i64) -> usize {
        let place = at.saturating_sub(self.from).div_euclid(self.width);
        usize::try_from(place).unwrap_or_default().min(self.len - 1)
    }

    /// The start of a bar. For `len`, returns the end of the last bar.
    pub(crate) fn start(&self, place: usize) -> i64 {
        let place = i64::try_from(place).unwrap_or(i64::MAX);
        self.from.saturating_add(place.saturating_mul(self.width))
    }

    pub(crate) fn end(&self) -> i64 {
        self.start(self.len)
    }
}

/// The resolution of times of this one, and of one more. Shorter bars would be empty only because the times are rounded.
pub(crate) const fn finer(mut unit: i64, moment: i64) -> i64 {
    while moment % unit != 0 {
        unit /= 10;
    }
    unit
}

const MILLISECOND: i64 = 1_000;
pub(crate) const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

fn round_up(micros: i64) -> i64 {
    // 1, 2, 5, 10, 20, 50, .. times the unit.
    let decimals = |unit: i64| {
        (0..=18).flat_map(move |power| [1, 2, 5].map(|digit| unit.saturating_mul(digit * 10_i64.pow(power))))
    };
    decimals(1)
        .take_while(|length| *length < SECOND)
        .chain([1, 2, 5, 10, 15, 30].map(|part| part * SECOND))
        .chain([1, 2, 5, 10, 15, 30].map(|part| part * MINUTE))
        .chain([1, 2, 3, 6, 12].map(|part| part * HOUR))
        .chain(decimals(DAY))
        .find(|length| *length >= micros)
        .unwrap_or(i64::MAX)
}

/// The longest unit that divides this length.
fn unit(step: i64) -> (i64, &'static str) {
    let units = [(DAY, "days"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"), (MILLISECOND, "ms")];
    units.into_iter().find(|(unit, _)| step % unit == 0).unwrap_or((1, "µs"))
}

/// Formats a length: `s`, `10 min`, `2 days`.
pub(super) fn length_name(length: i64) -> String {
    let (unit, name) = unit(length);
    match length / unit {
        1 => if name == "days" { "day" } else { name }.to_owned(),
        units => format!("{units} {name}"),
    }
}

/// The marks of an axis that holds all `amounts` and 0, from its one end to the other: about so many, and at least `closest` apart.
pub(super) fn marks(amounts: impl IntoIterator<Item = f64>, wanted: u32, closest: f64) -> Vec<f64> {
    let amounts = amounts.into_iter().filter(|amount| amount.is_finite());
    let (least, most) = amounts.fold((0.0_f64, 0.0_f64), |(least, most), next| (least.min(next), most.max(next)));
    let most = if most - least < 1e-12 { 1.0 } else { most };
    let rough = (most - least) / f64::from(wanted);
    let power = 10_f64.powf(rough.log10().floor());
    let is_enough = |digit: &f64| digit * power >= rough * (1.0 - 1e-9);
    let step = closest.max([1.0, 2.0, 5.0].into_iter().find(is_enough).unwrap_or(10.0) * power);
    let (first, last) = ((least / step + 1e-9).floor(), (most / step - 1e-9).ceil());
    // Bound the number of marks for any input.
    let count = (last - first).clamp(1.0, 100.0) as u32;
    (0..=count).map(|nth| (first + f64::from(nth)) * step).collect()
}

/// Formats a marked amount: `1500`, `20k`, `1.5M`, `1e100`.
pub(super) fn short(amount: f64) -> String {
    let (unit, name) = match amount.abs() {
        ..1e-13 => return "0".to_owned(),
        ..1e-3 | 1e15.. => return format!("{amount:.1e}").replace(".0e", "e"),
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e4.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    // Marks are sums of steps, which are not exact.
    plain((amount / unit * 1e9).round() / 1e9) + name
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The time since 0.
    Elapsed,
    Utc,
}

/// The title of an axis of time, and the names of its marks.
pub(super) type TimeAxis = (String, BTreeMap<i64, String>);

/// The most steps on the axis.
const MOST: i64 = 11;
/// Steps longer than this are whole months.
const LONGEST_STEP: i64 = 20 * DAY;

pub(super) fn time_axis(clock: Clock, bins: Bins) -> TimeAxis {
    let (from, to) = (bins.from, bins.end());
    let step = round_up(to.saturating_sub(from) / MOST);
    match (clock, [from, to.saturating_sub(1)].map(|at| date_time(at).date())) {
        (Clock::Elapsed, _) => {
            let (unit, name) = unit(step);
            let marks = multiples(from, to, step).map(|at| (at, plain(at as f64 / unit as f64)));
            (format!("time ({name})"), marks.collect())
        }
        (Clock::Utc, _) if step > LONGEST_STEP => ("time (UTC)".to_owned(), months(from, to)),
        (Clock::Utc, [first, last]) if first == last => (format!("time (UTC) on {first}"), times(from, to, step)),
        (Clock::Utc, [first, last]) => (format!("time (UTC) from {first} to {last}"), times(from, to, step)),
    }
}

fn multiples(from: i64, to: i64, step: i64) -> impl Iterator<Item = i64> {
    let first = from.div_euclid(step) + i64::from(from.rem_euclid(step) > 0);
    (first..=to.div_euclid(step)).map(move |nth| nth.saturating_mul(step))
}

/// Recorded times are within a few centuries, so each is valid.
fn date_time(micros: i64) -> DateTime {
    TimeZone::UTC.to_datetime(Timestamp::from_microsecond(micros).unwrap_or_default())
}

fn times(from: i64, to: i64, step: i64) -> BTreeMap<i64, String> {
    let name = |at: i64| {
        let format = match step {
            // Midnight is labelled with the date.
            _ if step >= DAY || at.rem_euclid(DAY) == 0 && to - from > DAY / 2 => "%d %b",
            _ if step >= MINUTE => "%H:%M",
            _ if step >= SECOND => "%H:%M:%S",
            _ => "%H:%M:%S%.f",
        };
        (at, date_time(at).strftime(format).to_string())
    };
    multiples(from, to, step).map(name).collect()
}

/// Marks at the first days of months or years.
fn months(from: i64, to: i64) -> BTreeMap<i64, String> {
    const STEPS: [i64; 12] = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400];
    let [first, last] = [from, to].map(date_time).map(|time| i64::from(time.year()) * 12 + i64::from(time.month()) - 1);
    let step = STEPS.into_iter().find(|step| (last - first) / step < MOST).unwrap_or(STEPS[11]);
    let mark = |month: i64| {
        let year = i16::try_from(month.div_euclid(12)).ok()?;
        let date = Date::new(year, i8::try_from(month.rem_euclid(12)).ok()? + 1, 1).ok()?;
        let at = TimeZone::UTC.to_timestamp(date.into()).ok()?.as_microsecond();
        let name = date.strftime(if step < 12 { "%b %Y" } else { "%Y" }).to_string();
        (from..=to).contains(&at).then_some((at, name))
    };
    multiples(first, last, step).filter_map(mark).collect()
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::{BoldPoints, Ranged};
    use plotters::coord::types::RangedCoordf64;

    use super::*;
    use crate::study::replay::events::YEARS;

    fn names(amounts: &[f64]) -> String {
        let marks = marks(amounts.iter().copied(), 4, 0.0);
        for amount in amounts {
            assert!((marks[0]..=marks[marks.len() - 1]).contains(amount), "{amount} on {marks:?}");
        }
        // The chart marks the same amounts.
        let range = RangedCoordf64::from(marks[0]..marks[marks.len() - 1]);
        range.key_points(BoldPoints(marks.len())).into_iter().map(short).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn marks_are_round_and_enclose_all_amounts() {
        assert_eq!(names(&[]), "0 0.5 1");
        assert_eq!(names(&[3.0, 17.0]), "0 5 10 15 20");
        assert_eq!(names(&[10.0, -4.0]), "-5 0 5 10");
        assert_eq!(names(&[0.7]), "0 0.2 0.4 0.6 0.8");
        assert_eq!(names(&[40_000.0]), "0 10k 20k 30k 40k");
        assert_eq!(names(&[1_400_000.0]), "0 500k 1M 1.5M");
        assert_eq!(names(&[-7.0]), "-8 -6 -4 -2 0");
        assert_eq!(marks([2.0], 4, 1.0), [0.0, 1.0, 2.0]);
        // Amounts of every size have marks.
        for amount in [1e100, 1e-100, -1e100, 2e15, 1e-7, f64::NAN, f64::INFINITY] {
            let marks = marks([amount], 4, 0.0);
            assert!((2..=12).contains(&marks.len()), "{marks:?}");
            assert!(marks.iter().all(|mark| mark.is_finite() && short(*mark).len() < 10), "{marks:?}");
            assert!(marks[0] < marks[1]);
        }
    }

    fn bins(first: i64, last: i64) -> Bins {
        Bins::over(first, last, None, 1).unwrap()
    }

    #[test]
    fn elapsed_time_has_a_unit_and_recorded_time_a_date() {
        // 2015-05-17T10:05:03Z
        let at = 1_431_857_103 * SECOND;
        let two_days = "time (UTC) from 2015-05-17 to 2015-05-18";
        let seconds = "10:05:04 10:05:06 10:05:08 10:05:10 10:05:12 10:05:14 10:05:16 10:05:18 10:05:20 10:05:22";
        let fractions = "00:00:00 00:00:00.05 00:00:00.1 00:00:00.15 00:00:00.2 00:00:00.25 00:00:00.3 00:00:00.35 \
                         00:00:00.4 00:00:00.45 00:00:00.5";
        let (elapsed, utc) = (Clock::Elapsed, Clock::Utc);
        for (clock, first, last, title, names) in [
            (elapsed, 0, 300 * SECOND - 1, "time (s)", "0 30 60 90 120 150 180 210 240 270 300"),
            (elapsed, 0, 90 * MINUTE - 1, "time (min)", "0 10 20 30 40 50 60 70 80 90"),
            (elapsed, 0, 2999, "time (µs)", "0 500 1000 1500 2000 2500 3000"),
            (elapsed, 0, 30 * DAY - 1, "time (days)", "0 5 10 15 20 25 30"),
            (utc, at, at + 20 * SECOND, "time (UTC) on 2015-05-17", seconds),
            (utc, at, at + 30 * HOUR, two_days, "12:00 15:00 18:00 21:00 18 May 03:00 06:00 09:00 12:00 15:00"),
            (utc, at, at + 400 * DAY, "time (UTC)", "Jul 2015 Sep 2015 Nov 2015 Jan 2016 Mar 2016 May 2016"),
            (utc, *YEARS.start(), *YEARS.end(), "time (UTC)", "1800 1850 1900 1950 2000 2050 2100 2150 2200"),
            (utc, 0, SECOND / 2, "time (UTC) on 1970-01-01", fractions),
        ] {
            let (own_title, marks) = time_axis(clock, bins(first, last));
            assert!((2..=12).contains(&marks.len()), "{marks:?}");
            let marks = marks.into_values().collect::<Vec<_>>().join(" ");
            assert_eq!((own_title.as_str(), marks.as_str()), (title, names));
        }
    }

    #[test]
    fn bars_hold_every_moment_and_have_a_round_length_of_at_least_the_resolution() {
        let one = bins(-1, -1);
        assert_eq!(one, Bins { from: -SECOND, width: SECOND, len: 1 });
        assert_eq!((one.place(-1), one.start(0), one.end()), (0, -SECOND, 0));
        assert_eq!(bins(0, 300 * SECOND - 1), Bins { from: 0, width: 2 * SECOND, len: 150 });
        let all = bins(*YEARS.start(), *YEARS.end());
        assert!(all.width == 1000 * DAY && all.len < 150 && all.end() > *YEARS.end(), "{all:?}");
        for (first, last) in [(0, 1), (7, 12_345), (-3 * HOUR, 5), (1_431_857_103_000_000, 1_431_943_503_000_000)] {
            let bins = bins(first, last);
            assert!(bins.from <= first && bins.end() > last && bins.len <= 151, "{bins:?}");
            for at in [first, last, first + (last - first) / 3] {
                let place = bins.place(at);
                assert!(bins.start(place) <= at && at < bins.start(place + 1), "{at} in {bins:?}");
            }
        }
        let error = Bins::over(0, 300 * SECOND, Some(1000), 1).unwrap_err().to_string();
        assert!(error.contains("300,001 bars of 1ms") && error.contains("at most 2,000"), "{error}");
        // A shorter length can be requested.
        let minute = |width, finest| Bins::over(0, 60 * SECOND, width, finest).unwrap().width;
        let widths = [minute(None, 1), minute(None, SECOND), minute(Some(SECOND / 2), SECOND)];
        assert_eq!(widths, [500_000, SECOND, 500_000]);
        let resolution = |moments: &[i64]| moments.iter().copied().fold(SECOND, finer);
        assert_eq!(resolution(&[3 * SECOND, -SECOND, 0]), SECOND);
        assert_eq!(resolution(&[3 * SECOND, 2_500_000]), 100_000);
        assert_eq!([resolution(&[1_767_225_600_001_000]), resolution(&[7]), resolution(&[])], [1_000, 1, SECOND]);
    }

    #[test]
    fn lengths_are_rounded_up_to_round_numbers_of_a_unit() {
        let lengths = [0, 3, 400_000, 600_000, 7 * SECOND, 31 * SECOND, 4 * HOUR, 13 * HOUR, 3 * DAY, 973 * DAY];
        let rounded = [1, 5, 500_000, SECOND, 10 * SECOND, MINUTE, 6 * HOUR, DAY, 5 * DAY, 1000 * DAY];
        assert_eq!(lengths.map(round_up), rounded);
        assert_eq!(round_up(i64::MAX), i64::MAX);
        assert_eq!([1, 500_000, 90 * SECOND, 2 * DAY].map(|step| unit(step).1), ["µs", "ms", "s", "days"]);
        assert_eq!([SECOND, 10 * MINUTE, DAY, 2 * DAY].map(length_name), ["s", "10 min", "day", "2 days"]);
    }
}
