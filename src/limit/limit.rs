use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::limit::InvalidLimit;
use crate::limit::calendar::{Given, Windows};
use crate::limit::exact::is_bound;
use crate::limit::{Calendar, Kind, LARGEST_NUMBER, format_micros, shards};

/// A hundred years of 365.25 days: the longest period, and the longest of other durations.
pub(crate) const LONGEST_PERIOD: Duration = Duration::from_secs(36_525 * 86_400);
const FINEST_RESOLUTION: u32 = 1000;
const MOST_SLOTS: f64 = 1000.0;

/// A rate limit: its kind, rate, period and options. A `Limit` is always valid.
///
/// - rate: tokens per period, 1e-6 to 1e13. The counts of calls have the same range, and are whole numbers or at least a billionth of
///   the capacity. Within these bounds, decisions are exact
/// - period: 1 microsecond to 36,525 days, in whole microseconds. As text it must not contain months or years, which differ
///   in length.
/// - every, zone, anchor: the spans of a calendar window, instead of a period; see [`Limit::calendar`]
/// - capacity: the most tokens held: 0, or 1e-6 to 1e13 (default: the rate; not for a sliding window)
/// - max_reserved: the most tokens that reservations may owe: 0, or 1e-6 to 1e13 (default: 1e13; not for a sliding window)
/// - start: the start of the grid of windows (fixed and sliding windows)
/// - resolution: the number of sub-intervals, 1 to 1000 (sliding window; default: 1)
/// - a concurrency limit has only a capacity: 1 to 1000 slots, and a lease: as a period (default: 30 s)
/// - shards: the number of rows that each bucket is spread over, 1 to 1000, each with at least 1 token (default: 1); see
///   [`recommended_shards`](Self::recommended_shards)
///
/// A limit is a value in your code or in a limits file. The database stores balances only, so a changed limit takes effect
/// with the first call of a process that has it: see [`Limiter::replace_limits`](crate::Limiter::replace_limits). With serde,
/// a limit has the fields of the limits file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    kind: Kind,
    rate: f64,
    period: i64,
    capacity: Option<f64>,
    pub(super) max_reserved: Option<f64>,
    start: Option<i64>,
    resolution: Option<u32>,
    shards: u32,
    windows: Option<Windows>,
}

/// The options of a limit before they are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) kind: Kind,
    pub(crate) rate: f64,
    /// In microseconds; as given if the duration cannot be expressed in them.
    pub(crate) period: Result<i64, Duration>,
    pub(crate) capacity: Option<f64>,
    pub(crate) max_reserved: Option<f64>,
    pub(crate) start: Option<Result<i64, Duration>>,
    pub(crate) resolution: Option<u32>,
    pub(crate) shards: Option<u32>,
    /// Instead of the period of a calendar window.
    pub(crate) every: Option<Calendar>,
    pub(crate) zone: Option<Given>,
    pub(crate) anchor: Option<Given>,
}

impl Options {
    pub(crate) const fn new(kind: Kind, rate: f64, period: Result<i64, Duration>) -> Self {
        Self {
            kind,
            rate,
            period,
            capacity: None,
            max_reserved: None,
            start: None,
            resolution: None,
            shards: None,
            every: None,
            zone: None,
            anchor: None,
        }
    }

    pub(crate) fn check(self) -> Result<Limit, InvalidLimit> {
        let counts_slots = self.kind == Kind::Concurrency;
        if counts_slots && !((1.0..=MOST_SLOTS).contains(&self.rate) && self.rate.fract() == 0.0) {
            return Err(InvalidLimit::new(format!(
                "the capacity {} is not a whole number of slots from 1 to {MOST_SLOTS}",
                self.rate
            )));
        }
        let capacity = self.capacity.unwrap_or(self.rate);
        if self.rate == 0.0 || !is_bound(self.rate) {
            return Err(InvalidLimit::new(format!("the rate {} is not a number from 1e-6 to 1e13", self.rate)));
        }
        let longest = LONGEST_PERIOD.as_micros() as i64;
        let windows = self.every.map(|every| Windows::new(every, self.zone, self.anchor)).transpose()?;
        let period = match windows.map_or(self.period, |windows| Ok(windows.every.nominal_micros())) {
            Ok(period) if (1..=longest).contains(&period) => period,
            given => {
                let given = given.map_or_else(|period| format!("{period:?}"), format_micros);
                let name = if counts_slots { "lease" } else { "period" };
                return Err(InvalidLimit::new(format!(
                    "the {name} {given} is not valid; use a whole number of microseconds, from 1 microsecond to 36525 days"
                )));
            }
        };
        for (name, tokens) in [("the capacity", self.capacity), ("max_reserved", self.max_reserved)] {
            if let Some(tokens) = tokens
                && !is_bound(tokens)
            {
                return Err(InvalidLimit::new(format!("{name} {tokens} is not 0 or a number from 1e-6 to 1e13")));
            }
        }
        if let Some(parts) = self.resolution
            && !(1..=FINEST_RESOLUTION).contains(&parts)
        {
            return Err(InvalidLimit::new(format!("the resolution {parts} is not between 1 and {FINEST_RESOLUTION}")));
        }
        let shards = self.shards.unwrap_or(1);
        shards::check(shards, capacity)?;
        if let Some(option) = self.kind.misplaced(&self) {
            return Err(InvalidLimit::new(format!("{option} does not apply to a {}", self.kind)));
        }
        let start = match self.start {
            Some(Err(start)) => {
                return Err(InvalidLimit::new(format!(
                    "the start {start:?} is not valid; use a whole number of microseconds, less than the period"
                )));
            }
            Some(Ok(start)) => Some(start % period),
            None => None,
        };
        Ok(Limit {
            kind: self.kind,
            rate: self.rate,
            period,
            capacity: self.capacity,
            max_reserved: self.max_reserved,
            start,
            resolution: self.resolution,
            shards,
            windows,
        })
    }
}

impl Limit {
    /// A gate: it allows every call on a key, unless the key is blocked. [`Limiter::block`](crate::Limiter::block) blocks a key
    /// for a time. In a call on several limits, a gate denies while the key is blocked, and the rest of the block is its wait.
    /// Nothing is taken from a gate, so the counts of its items are ignored. It has no options.
    ///
    /// ```
    /// use pg_limiter::{Kind, Limit, Limits};
    /// let limits = Limits::new().define("banned", Limit::gate())?;
    /// assert_eq!(limits.get("banned").map(Limit::kind), Some(Kind::Gate));
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub const fn gate() -> Self {
        Self {
            kind: Kind::Gate,
            rate: 1.0,
            period: 1,
            capacity: Some(0.0),
            max_reserved: Some(0.0),
            start: None,
            resolution: None,
            shards: 1,
            windows: None,
        }
    }

    pub(crate) const fn is_gate(&self) -> bool {
        matches!(self.kind, Kind::Gate)
    }

    /// The kind of the limit.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Tokens per period; for a concurrency limit, its slots. The numbers of a gate describe how a block is stored: 1 per
    /// microsecond, with a capacity of 0.
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// The time in which `rate` tokens arrive. For a calendar window, its average length: a month has 30.436875 days, a year
    /// 365.2425 days. For a concurrency limit, the length of a lease.
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period.unsigned_abs())
    }

    /// The most tokens that a bucket can hold; for a sliding window, the rate; for a concurrency limit, its slots.
    pub fn capacity(&self) -> f64 {
        self.capacity.unwrap_or(self.rate)
    }

    /// The most tokens that reservations may owe; `None` means as many as decisions keep exact, 1e13.
    pub const fn max_reserved(&self) -> Option<f64> {
        self.max_reserved
    }

    /// The start of the grid modulo the period, if one was given.
    pub fn start(&self) -> Option<Duration> {
        self.start.map(|start| Duration::from_micros(start.unsigned_abs()))
    }

    /// The length of the windows of a calendar window.
    pub fn every(&self) -> Option<Calendar> {
        self.windows.map(|windows| windows.every)
    }

    /// The time zone of a calendar window.
    pub fn zone(&self) -> Option<&str> {
        self.windows.as_ref().map(Windows::zone)
    }

    /// The local date, or date and time, from which the windows of a calendar window are counted: "2026-01-31" or
    /// "2026-01-31 09:00".
    pub fn anchor(&self) -> Option<&str> {
        self.windows.as_ref().map(Windows::anchor)
    }

    /// The number of sub-intervals of a sliding window.
    pub fn resolution(&self) -> u32 {
        self.resolution.unwrap_or(1)
    }

    /// The number of rows that each bucket is spread over.
    pub const fn shards(&self) -> u32 {
        self.shards
    }

    /// The largest count that a call without a reservation can ever be granted: the capacity.
    pub fn largest_count(&self) -> f64 {
        self.capacity()
    }

    /// The largest count that a reservation can ever be granted: the capacity plus `max_reserved`.
    pub fn largest_reservation(&self) -> f64 {
        self.capacity() + self.max_reserved.unwrap_or(LARGEST_NUMBER)
    }

    /// The kind as SQL expects it. That of a calendar window holds its calendar.
    pub(crate) fn kind_in_sql(&self) -> Cow<'static, str> {
        match (self.windows, self.kind) {
            (Some(windows), _) => Cow::Owned(windows.kind_in_sql()),
            (None, kind) => Cow::Borrowed(kind.as_str()),
        }
    }

    /// The windows of a calendar window.
    pub(crate) const fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref()
    }

    pub(crate) const fn period_micros(&self) -> i64 {
        self.period
    }

    pub(crate) const fn start_micros(&self) -> Option<i64> {
        self.start
    }

    /// As given; `None` for the default.
    pub(crate) const fn given_capacity(&self) -> Option<f64> {
        self.capacity
    }

    /// As given; `None` for the default.
    pub(crate) const fn given_resolution(&self) -> Option<u32> {
        self.resolution
    }

    /// `None` for the default.
    pub(crate) const fn given_shards(&self) -> Option<u32> {
        if self.shards == 1 { None } else { Some(self.shards) }
    }
}

/// `token_bucket, 10 per 1m, capacity 20`: with the options that were given. `concurrency, 3 at a time, lease 30s`. A gate is
/// `gate`.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_gate() {
            return self.kind.fmt(f);
        }
        if self.kind == Kind::Concurrency {
            return write!(f, "{}, {} at a time, lease {}", self.kind, self.rate, format_micros(self.period));
        }
        let period = self.windows.map_or_else(|| format_micros(self.period), |windows| windows.every.to_string());
        write!(f, "{}, {} per {period}", self.kind, self.rate)?;
        let given = |option: fn(&Windows) -> Option<&str>| self.windows().and_then(option).map(str::to_owned);
        let options = [
            ("zone", given(Windows::given_zone)),
            ("anchor", given(Windows::given_anchor)),
            ("capacity", self.capacity.map(|tokens| tokens.to_string())),
            ("max_reserved", self.max_reserved.map(|tokens| tokens.to_string())),
            ("start", self.start.map(format_micros)),
            ("resolution", self.resolution.map(|parts| parts.to_string())),
            ("shards", (self.shards > 1).then(|| self.shards.to_string())),
        ];
        for (option, value) in options {
            if let Some(value) = value {
                write!(f, ", {option} {value}")?;
            }
        }
        Ok(())
    }
}
