//! Calendar windows by jiff, which brings its own time zone data, and by trying windows one after the other.

use std::sync::LazyLock;

use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Span, Timestamp};

/// Windows of `count` units from `anchor` on, in the local time of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calendar {
    pub count: i64,
    /// hour, day, week, month or year
    pub unit: &'static str,
    pub zone: &'static str,
    pub anchor: DateTime,
}

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

impl Calendar {
    pub fn zone(&self) -> TimeZone {
        ZONES.get(self.zone).expect("a zone")
    }

    /// The moment that PostgreSQL gives to the local start of a window: the later one of two, and the time before the clocks
    /// went forward for a local time that they skipped.
    pub fn start(&self, window: i64) -> i64 {
        self.start_in(&self.zone(), window)
    }

    fn start_in(&self, zone: &TimeZone, window: i64) -> i64 {
        let units = window * self.count;
        let span = match self.unit {
            "hour" => Span::new().hours(units),
            "day" => Span::new().days(units),
            "week" => Span::new().weeks(units),
            "month" => Span::new().months(units),
            _ => Span::new().years(units),
        };
        let local = self.anchor.checked_add(span).expect("a date");
        zone.to_ambiguous_timestamp(local).later().expect("a moment").as_microsecond()
    }

    /// The average length of a window.
    pub fn micros(&self) -> i64 {
        let hours = match self.unit {
            "hour" => 1.0,
            "day" => 24.0,
            "week" => 168.0,
            "month" => 24.0 * 30.436_875,
            _ => 24.0 * 365.2425,
        };
        (self.count as f64 * hours * 3.6e9) as i64
    }

    /// The windows around this one that could start before it, or in which it could be: more than a day of hours.
    fn nearby(&self) -> i64 {
        if self.unit == "hour" { 30 / self.count + 3 } else { 3 }
    }

    /// The window of a moment: the last one that has started.
    pub fn window(&self, at: i64) -> i64 {
        let zone = self.zone();
        let local = zone.to_datetime(Timestamp::from_microsecond(at).expect("a time"));
        let since = local.duration_since(self.anchor).as_micros() as f64 / self.micros() as f64;
        let guess = since as i64;
        let near = guess - self.nearby()..=guess + self.nearby();
        near.rev().find(|window| self.start_in(&zone, *window) <= at).expect("a window near the guess")
    }

    /// When this window has been granted: no later than any later window starts.
    pub fn granted_at(&self, window: i64) -> i64 {
        let zone = self.zone();
        (window..=window + self.nearby()).map(|later| self.start_in(&zone, later)).min().expect("a window")
    }

    /// The kind as SQL expects it.
    pub fn in_sql(&self) -> String {
        format!("calendar_window {} {} {} {}", self.count, self.unit, self.zone, self.anchor)
    }
}
