//! Calendar windows: their lengths, time zones and anchors. Only the database knows when a window starts.

use std::fmt;
use std::str::FromStr;

use crate::limit::InvalidLimit;
use crate::limit::short::Short;

/// The texts of a builder before they are checked: longer than any valid one.
pub(crate) type Given = Short<64>;

const DAY: i64 = 86_400_000_000;
/// The most by which clocks go forward: Samoa skipped a day. The estimates of waits include it.
const MOST_FORWARD: i64 = DAY;
/// The most by which clocks go back, apart from some changes of the date line before 1970.
const MOST_BACK: i64 = DAY / 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Unit {
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// A span of the calendar: a whole number of hours, days, weeks, months or years, up to 100 years.
///
/// It is the length of the windows of [`Limit::calendar`](crate::Limit::calendar). As text, as in limits files: "1 month".
///
/// ```
/// use pg_limiter::Calendar;
///
/// assert_eq!("3 months".parse(), Ok(Calendar::months(3)));
/// assert_eq!(Calendar::days(1).to_string(), "1 day");
/// # Ok::<(), pg_limiter::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    count: u32,
    unit: Unit,
}

impl Unit {
    const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The most units that make up to 100 years.
    const fn most(self) -> u32 {
        match self {
            Self::Hour => 876_600,
            Self::Day => 36_525,
            Self::Week => 5_217,
            Self::Month => 1_200,
            Self::Year => 100,
        }
    }

    /// The shortest, the average and the longest length in microseconds.
    const fn lengths(self) -> [i64; 3] {
        match self {
            Self::Hour => [DAY / 24; 3],
            Self::Day => [DAY; 3],
            Self::Week => [7 * DAY; 3],
            Self::Month => [28 * DAY, 30 * DAY + 436_875 * (DAY / 1_000_000), 31 * DAY],
            Self::Year => [365 * DAY, 365 * DAY + 242_500 * (DAY / 1_000_000), 366 * DAY],
        }
    }
}

impl Calendar {
    /// This many hours.
    pub const fn hours(count: u32) -> Self {
        Self { count, unit: Unit::Hour }
    }

    /// This many days.
    pub const fn days(count: u32) -> Self {
        Self { count, unit: Unit::Day }
    }

    /// This many weeks.
    pub const fn weeks(count: u32) -> Self {
        Self { count, unit: Unit::Week }
    }

    /// This many months.
    pub const fn months(count: u32) -> Self {
        Self { count, unit: Unit::Month }
    }

    /// This many years.
    pub const fn years(count: u32) -> Self {
        Self { count, unit: Unit::Year }
    }

    /// The average length in microseconds: a month has 30.436875 days, a year 365.2425.
    pub(crate) fn nominal_micros(self) -> i64 {
        self.unit.lengths()[1] * i64::from(self.count)
    }

    /// The shortest and the longest length that this many windows in a row can have, in microseconds.
    pub(crate) fn micros_of(self, windows: f64) -> (f64, f64) {
        let [shortest, _, longest] = self.unit.lengths().map(|length| length as f64 * f64::from(self.count) * windows);
        ((shortest - MOST_FORWARD as f64).max(0.0), longest + MOST_BACK as f64)
    }

    /// The number of windows that start within this time, whenever it starts.
    pub(crate) fn starting_within(self, micros: f64) -> f64 {
        let [_, _, longest] = self.unit.lengths().map(|length| length as f64 * f64::from(self.count));
        ((micros - MOST_BACK as f64) / longest).floor().max(0.0)
    }

    pub(crate) fn check(self) -> Result<Self, InvalidLimit> {
        if (1..=self.unit.most()).contains(&self.count) {
            return Ok(self);
        }
        Err(InvalidLimit::new(format!(
            "every \"{self}\" is not valid; use 1 to {} {}s",
            self.unit.most(),
            self.unit.as_str()
        )))
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.count, self.unit.as_str(), if self.count == 1 { "" } else { "s" })
    }
}

impl FromStr for Calendar {
    type Err = InvalidLimit;

    /// Parses a number and a unit: hours, days, weeks, months or years.
    fn from_str(text: &str) -> Result<Self, InvalidLimit> {
        let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = unit.trim_start_matches(' ');
        let unit = unit.strip_suffix('s').unwrap_or(unit);
        match (count.parse(), Unit::ALL.into_iter().find(|known| known.as_str() == unit)) {
            (Ok(count), Some(unit)) => Self { count, unit }.check(),
            _ => Err(InvalidLimit::new(format!(
                "every \"{text}\" is not a whole number of hours, days, weeks, months or years, such as \"1 month\""
            ))),
        }
    }
}

/// The windows of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) every: Calendar,
    /// `None` for UTC.
    zone: Option<Short<48>>,
    /// A local date, or date and time. `None` for the default.
    anchor: Option<Short<19>>,
}

/// A default is equal to the same value that was given, as in the stored limits.
impl PartialEq for Windows {
    fn eq(&self, other: &Self) -> bool {
        self.kind_in_sql() == other.kind_in_sql()
    }
}

impl Windows {
    pub(crate) fn new(every: Calendar, zone: Option<Given>, anchor: Option<Given>) -> Result<Self, InvalidLimit> {
        let every = every.check()?;
        let zone = zone.map(|zone| check_zone(zone.as_str())).transpose()?;
        let anchor = anchor.map(|anchor| check_anchor(anchor.as_str())).transpose()?;
        Ok(Self { every, zone, anchor })
    }

    /// As given; `None` for the default.
    pub(crate) fn given_zone(&self) -> Option<&str> {
        self.zone.as_ref().map(Short::as_str)
    }

    /// As given; `None` for the default.
    pub(crate) fn given_anchor(&self) -> Option<&str> {
        self.anchor.as_ref().map(Short::as_str)
    }

    pub(crate) fn zone(&self) -> &str {
        self.given_zone().unwrap_or("UTC")
    }

    pub(crate) fn anchor(&self) -> &str {
        self.given_anchor().unwrap_or(match self.every.unit {
            Unit::Week => "1970-01-05", // a Monday
            _ => "1970-01-01",
        })
    }

    /// The kind as SQL expects it: it holds the calendar.
    pub(crate) fn kind_in_sql(&self) -> String {
        let Calendar { count, unit } = self.every;
        let (date, time) = self.anchor().split_once(' ').unwrap_or((self.anchor(), "00:00"));
        let seconds = if time.len() == 5 { ":00" } else { "" };
        format!("calendar_window {count} {} {} {date}T{time}{seconds}", unit.as_str(), self.zone())
    }
}

/// The names of zones without a slash, as in `sql/kinds/calendar_window.sql`. The IANA database adds no more of them.
const ZONES_WITHOUT_SLASH: [&str; 47] = [
    "CET",
    "CST6CDT",
    "Cuba",
    "EET",
    "EST",
    "EST5EDT",
    "Egypt",
    "Eire",
    "Factory",
    "GB",
    "GB-Eire",
    "GMT",
    "GMT+0",
    "GMT-0",
    "GMT0",
    "Greenwich",
    "HST",
    "Hongkong",
    "Iceland",
    "Iran",
    "Israel",
    "Jamaica",
    "Japan",
    "Kwajalein",
    "Libya",
    "MET",
    "MST",
    "MST7MDT",
    "NZ",
    "NZ-CHAT",
    "Navajo",
    "PRC",
    "PST8PDT",
    "Poland",
    "Portugal",
    "ROC",
    "ROK",
    "Singapore",
    "Turkey",
    "UCT",
    "UTC",
    "Universal",
    "W-SU",
    "WET",
    "Zulu",
    "localtime",
    "posixrules",
];

/// Checks the form of a zone, so that a name which the server knows is one of `pg_timezone_names`. The server also accepts
/// abbreviations, POSIX zones such as `GMT+3` or a mistyped name with a digit, and zones with leap seconds.
fn check_zone(zone: &str) -> Result<Short<48>, InvalidLimit> {
    let upper = zone.to_ascii_uppercase();
    let name = upper.strip_prefix("POSIX/").unwrap_or(&upper);
    let is_word = ZONES_WITHOUT_SLASH.iter().any(|word| word.eq_ignore_ascii_case(name));
    let is_of_gmt = name.strip_prefix("ETC/GMT").is_some_and(|hours| {
        hours == "0"
            || (0..=12).any(|west| hours == format!("+{west}"))
            || (0..=14).any(|east| hours == format!("-{east}"))
    });
    let is_place = name.contains('/')
        && !name.starts_with("RIGHT/")
        && name
            .split('/')
            .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase() || "_-".contains(c)));
    if zone.len() <= 48 && (is_word || is_of_gmt || is_place) {
        return Ok(Short::cut(zone));
    }
    Err(InvalidLimit::new(format!(
        "the zone {zone:?} is not the name of a time zone, such as \"Europe/Berlin\"; abbreviations and offsets are no names"
    )))
}

/// Checks an anchor such as "2026-01-31" or "2026-01-31 09:00", and returns it in the shortest form.
fn check_anchor(anchor: &str) -> Result<Short<19>, InvalidLimit> {
    let (date, time) = anchor.split_once([' ', 'T']).unwrap_or((anchor, "00:00"));
    let numbers = |text: &str, separator, lengths: &[usize]| {
        let parts: Vec<&str> = text.split(separator).collect();
        let fits = parts.len() == lengths.len()
            && parts
                .iter()
                .zip(lengths)
                .all(|(part, len)| part.len() == *len && part.bytes().all(|c| c.is_ascii_digit()));
        fits.then(|| parts.iter().map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>())
    };
    let is_date = numbers(date, '-', &[4, 2, 2]).is_some_and(|date| {
        let [year, month, day] = date[..] else { return false };
        let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let days = match month {
            2 => 28 + u32::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        (1800..2200).contains(&year) && (1..=12).contains(&month) && (1..=days).contains(&day)
    });
    let clock = numbers(time, ':', &[2, 2, 2]).or_else(|| numbers(time, ':', &[2, 2]));
    let is_time = clock.is_some_and(|clock| clock[0] < 24 && clock[1..].iter().all(|part| *part < 60));
    if !is_date || !is_time {
        return Err(InvalidLimit::new(format!(
            "the anchor {anchor:?} is not a date such as \"2026-01-31\", or a date and time such as \"2026-01-31 09:00\", in the \
             years 1800 to 2199"
        )));
    }
    let time = time.strip_suffix(":00").filter(|rest| rest.len() == 5).unwrap_or(time);
    Ok(Short::cut(&if time == "00:00" { date.to_owned() } else { format!("{date} {time}") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_parsed_and_printed() {
        for (text, printed) in
            [("1 month", "1 month"), ("3months", "3 months"), ("7 days", "7 days"), ("1 hours", "1 hour")]
        {
            assert_eq!(text.parse::<Calendar>().map(|calendar| calendar.to_string()), Ok(printed.to_owned()));
        }
        for text in [
            "",
            "1",
            "month",
            "0 months",
            "1201 months",
            "-1 day",
            "1.5 days",
            "1 fortnight",
            "1 day 2 hours",
            "1 dayss",
        ] {
            let message = text.parse::<Calendar>().expect_err(text).to_string();
            assert!(message.contains(&format!("every {text:?}")), "{message}");
        }
    }

    #[test]
    fn average_lengths_are_those_of_the_gregorian_calendar() {
        assert_eq!(Calendar::months(4800).nominal_micros(), 146_097 * DAY);
        assert_eq!(Calendar::years(400).nominal_micros(), 146_097 * DAY);
        assert_eq!(Calendar::weeks(2).nominal_micros(), 14 * DAY);
    }

    #[test]
    fn zones_are_names_and_no_abbreviations_or_offsets() {
        for zone in [
            "UTC",
            "Europe/Berlin",
            "America/Port-au-Prince",
            "Etc/GMT+5",
            "GMT0",
            "EST5EDT",
            "America/Argentina/San_Luis",
            "GMT+0",
            "Etc/GMT-14",
            "Etc/GMT+12",
            "CET",
            "Zulu",
            "W-SU",
            "NZ-CHAT",
            "localtime",
            "europe/berlin",
            "utc",
            "posix/Europe/Berlin",
            "posix/Etc/GMT+1",
        ] {
            assert_eq!(check_zone(zone).expect(zone).as_str(), zone);
        }
        for zone in [
            "",
            "Berlin2",
            "UTC+2",
            "<x>3",
            "/Berlin",
            "Europe/Berlin ",
            "Etc/GMT+500",
            "É",
            &format!("Europe/{}", "a".repeat(42)),
            // Abbreviations.
            "CEST",
            "cest",
            "PST",
            "EDT",
            "IST",
            "MSK",
            "Z",
            "BRT",
            // POSIX zones.
            "GMT+3",
            "GMT-3",
            "GMT3",
            "UTC0",
            "CET-1CEST",
            "Etc/GMT+13",
            "Etc/GMT-15",
            "Etc/GMT+03",
            "Etc/GMT3",
            "Etc/UTC+3",
            "Europe/Berlin-1",
            "posix/GMT+3",
            // Offsets, folders, zones with leap seconds.
            "+03",
            "+03:00",
            "Europe",
            "Europe/",
            "Europe//Berlin",
            "../Europe/Berlin",
            "right/Europe/Berlin",
            "Right/UTC",
        ] {
            let message = check_zone(zone).expect_err(zone).to_string();
            assert!(message.contains(&format!("{zone:?}")), "{message}");
        }
    }

    #[test]
    fn anchors_are_dates_or_dates_and_times() {
        for (anchor, short) in [
            ("2026-01-31", "2026-01-31"),
            ("2024-02-29 00:00", "2024-02-29"),
            ("2026-01-31T09:00:00", "2026-01-31 09:00"),
            ("2026-01-31 00:00:30", "2026-01-31 00:00:30"),
        ] {
            assert_eq!(check_anchor(anchor).expect(anchor).as_str(), short);
        }
        for anchor in [
            "",
            "2026",
            "2026-02-29",
            "2026-13-01",
            "1799-12-31",
            "2200-01-01",
            "2026-01-31 24:00",
            "2026-01-31 09:60",
            "26-01-31",
            "2026-01-31 09:00+01",
            "2026-01-31 9:00",
            "2026-01-3é",
            "+026-01-31",
        ] {
            let message = check_anchor(anchor).expect_err(anchor).to_string();
            assert!(message.contains(&format!("{anchor:?}")), "{message}");
        }
    }

    #[test]
    fn the_kind_in_sql_holds_the_calendar() {
        let windows = |every, zone: Option<&str>, anchor: Option<&str>| {
            Windows::new(every, zone.map(Given::cut), anchor.map(Given::cut)).expect("windows").kind_in_sql()
        };
        assert_eq!(windows(Calendar::months(1), None, None), "calendar_window 1 month UTC 1970-01-01T00:00:00");
        assert_eq!(windows(Calendar::weeks(2), None, None), "calendar_window 2 week UTC 1970-01-05T00:00:00");
        assert_eq!(
            windows(Calendar::hours(1), Some("Europe/Berlin"), Some("2026-01-31 09:00:07")),
            "calendar_window 1 hour Europe/Berlin 2026-01-31T09:00:07"
        );
    }
}
