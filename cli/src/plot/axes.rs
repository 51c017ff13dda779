//! The axes of tokens and of time, and their marks.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use crate::plot::bins::{Bins, DAY, MINUTE, SECOND, round_up, unit};
use crate::text::plain;

/// An axis from `least` to `most`, both of which are marked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AmountAxis {
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) marks: Vec<(f64, String)>,
}

impl AmountAxis {
    /// An axis that contains all `amounts` and 0, with about `wanted` marks that are at least `closest` apart.
    pub(super) fn holding(amounts: impl IntoIterator<Item = f64>, wanted: u32, closest: f64) -> Self {
        let (least, most) = amounts
            .into_iter()
            .filter(|amount| amount.is_finite())
            .fold((0.0_f64, 0.0_f64), |(least, most), amount| (least.min(amount), most.max(amount)));
        let most = if least == most { 1.0 } else { most };
        let step = round_step((most - least) / f64::from(wanted)).max(closest);
        let (first, last) = ((least / step + 1e-9).floor(), (most / step - 1e-9).ceil());
        // Bound the number of marks for any input.
        let count = (last - first).clamp(1.0, 100.0) as u32;
        let marks = (0..=count).map(|nth| {
            let amount = (first + f64::from(nth)) * step;
            (amount, short(amount, step))
        });
        let marks: Vec<(f64, String)> = marks.collect();
        Self { least: first * step, most: (first + f64::from(count)) * step, marks }
    }
}

/// Rounds a step up to 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// Formats an amount: `1500`, `20k`, `1.5M`, `1e100`.
fn short(amount: f64, step: f64) -> String {
    let scaled = |unit: f64, name: &str| {
        // Only as many digits as distinguish one step from the next.
        let power = 10_f64.powf((-(step / unit).log10().floor()).clamp(0.0, 9.0));
        plain((amount / unit * power).round() / power) + name
    };
    match amount.abs() {
        size if size > 0.0 && (size >= 1e15 || step < 1e-6) => format!("{amount:.1e}").replace(".0e", "e"),
        size if size >= 1e9 => scaled(1e9, "G"),
        size if size >= 1e6 => scaled(1e6, "M"),
        size if size >= 1e4 => scaled(1e3, "k"),
        0.0 => "0".to_owned(),
        _ => scaled(1.0, ""),
    }
}

/// The format of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The time since 0.
    Elapsed,
    /// The date and time in UTC.
    Utc,
}

/// The title below the axis, and the marked times.
pub(super) struct TimeAxis {
    pub(super) title: String,
    pub(super) marks: Vec<(i64, String)>,
}

/// The most steps on the axis.
const MOST: i64 = 11;
/// Steps longer than this are whole months.
const LONGEST_STEP: i64 = 20 * DAY;

impl TimeAxis {
    pub(super) fn new(clock: Clock, bins: Bins) -> Self {
        let (from, to) = (bins.from, bins.end());
        let step = round_up(to.saturating_sub(from) / MOST);
        match clock {
            Clock::Elapsed => {
                let (unit, name) = unit(step);
                let mark = |at: i64| (at, plain(at as f64 / unit as f64));
                Self { title: format!("time ({name})"), marks: multiples(from, to, step).map(mark).collect() }
            }
            Clock::Utc => {
                if step > LONGEST_STEP {
                    return Self { title: "time (UTC)".to_owned(), marks: months(from, to) };
                }
                let (first, last) = (date_time(from), date_time(to.saturating_sub(1)));
                let title = match (first.map(DateTime::date), last.map(DateTime::date)) {
                    (Some(first), Some(last)) if first == last => format!("time (UTC) on {first}"),
                    (Some(first), Some(last)) => format!("time (UTC) from {first} to {last}"),
                    _ => "time (UTC)".to_owned(),
                };
                Self { title, marks: times(from, to, step) }
            }
        }
    }
}

fn multiples(from: i64, to: i64, step: i64) -> impl Iterator<Item = i64> {
    let first = from.div_euclid(step) + i64::from(from.rem_euclid(step) > 0);
    (first..=to.div_euclid(step)).map(move |nth| nth.saturating_mul(step))
}

fn date_time(micros: i64) -> Option<DateTime> {
    Timestamp::from_microsecond(micros).ok().map(|at| TimeZone::UTC.to_datetime(at))
}

fn times(from: i64, to: i64, step: i64) -> Vec<(i64, String)> {
    let name = |at: i64| {
        let time = date_time(at)?;
        let format = match step {
            _ if step >= DAY => "%d %b",
            // Midnight is labelled with the date.
            _ if at.rem_euclid(DAY) == 0 && to - from > DAY / 2 => "%d %b",
            _ if step >= MINUTE => "%H:%M",
            _ if step >= SECOND => "%H:%M:%S",
            _ => "%H:%M:%S%.f",
        };
        Some((at, time.strftime(format).to_string()))
    };
    multiples(from, to, step).filter_map(name).collect()
}

/// Marks at the first days of months or years.
fn months(from: i64, to: i64) -> Vec<(i64, String)> {
    const STEPS: [i64; 12] = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400];
    let number = |at: i64| date_time(at).map(|time| i64::from(time.year()) * 12 + i64::from(time.month()) - 1);
    let (Some(first), Some(last)) = (number(from), number(to)) else { return Vec::new() };
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
    use super::*;
    use crate::plot::bins::HOUR;
    use crate::replay::YEARS;

    fn names(amounts: &[f64]) -> String {
        let axis = AmountAxis::holding(amounts.iter().copied(), 4, 0.0);
        for amount in amounts {
            assert!((axis.least..=axis.most).contains(amount), "{amount} on {axis:?}");
        }
        axis.marks.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" ")
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
        let whole = AmountAxis::holding([2.0], 4, 1.0);
        assert_eq!(whole.marks.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["0", "1", "2"]);
    }

    #[test]
    fn amounts_of_every_size_have_marks() {
        for amount in [1e100, 1e-100, -1e100, 2e15, 1e-7, f64::NAN, f64::INFINITY] {
            let axis = AmountAxis::holding([amount], 4, 0.0);
            assert!((2..=12).contains(&axis.marks.len()), "{axis:?}");
            assert!(axis.marks.iter().all(|(mark, name)| mark.is_finite() && name.len() < 10), "{axis:?}");
            assert!(axis.least < axis.most);
        }
    }

    fn axis(clock: Clock, first: i64, last: i64) -> (String, Vec<String>) {
        let axis = TimeAxis::new(clock, Bins::over(first, last, None, 1).unwrap());
        assert!(axis.marks.is_sorted(), "{:?}", axis.marks);
        assert!((2..=12).contains(&axis.marks.len()), "{:?}", axis.marks);
        (axis.title, axis.marks.into_iter().map(|(_, name)| name).collect())
    }

    #[test]
    fn elapsed_time_has_a_unit() {
        let (title, marks) = axis(Clock::Elapsed, 0, 300 * SECOND - 1);
        assert_eq!(
            (title.as_str(), marks.join(" ")),
            ("time (s)", "0 30 60 90 120 150 180 210 240 270 300".to_owned())
        );
        let (title, marks) = axis(Clock::Elapsed, 0, 90 * MINUTE - 1);
        assert_eq!((title.as_str(), marks.join(" ")), ("time (min)", "0 10 20 30 40 50 60 70 80 90".to_owned()));
        assert_eq!(axis(Clock::Elapsed, 0, 2999).0, "time (µs)");
        assert_eq!(axis(Clock::Elapsed, 0, 30 * DAY - 1).0, "time (days)");
    }

    #[test]
    fn recorded_time_has_a_date() {
        // 2015-05-17T10:05:03Z
        let at = 1_431_857_103 * SECOND;
        let (title, marks) = axis(Clock::Utc, at, at + 20 * SECOND);
        assert_eq!(title, "time (UTC) on 2015-05-17");
        assert_eq!(&marks[0], "10:05:04");
        let (title, marks) = axis(Clock::Utc, at, at + 30 * HOUR);
        assert_eq!(title, "time (UTC) from 2015-05-17 to 2015-05-18");
        assert_eq!(marks.join(" "), "12:00 15:00 18:00 21:00 18 May 03:00 06:00 09:00 12:00 15:00");
        let (_, marks) = axis(Clock::Utc, at, at + 400 * DAY);
        assert_eq!(marks.join(" "), "Jul 2015 Sep 2015 Nov 2015 Jan 2016 Mar 2016 May 2016");
        let (title, marks) = axis(Clock::Utc, *YEARS.start(), *YEARS.end());
        assert_eq!(title, "time (UTC)");
        assert!(marks.contains(&"1900".to_owned()) && marks.contains(&"2100".to_owned()), "{marks:?}");
    }

    #[test]
    fn less_than_a_second_has_fractions() {
        let (_, marks) = axis(Clock::Utc, 0, SECOND / 2);
        assert_eq!(&marks[1], "00:00:00.05");
    }
}
