//! The kinds of limits: their names, the options that apply to each, and builders that offer only these options.
//! The arithmetic of each kind is in a file in `sql/kinds/`.

use std::marker::PhantomData;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limit::InvalidLimit;
use crate::limit::calendar::Given;
use crate::limit::length::micros;
use crate::limit::limit::Options;
use crate::limit::{Calendar, Limit, Tokens};

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// The bucket refills continuously at `rate` tokens per `period`, up to `capacity`
    /// (J. Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986).
    TokenBucket,
    /// `rate` tokens arrive at the start of each window, and unused tokens roll over, up to `capacity`
    /// (as in Convex's rate limiter, on an absolute grid of windows).
    FixedWindow,
    /// At most `rate` tokens in the last `period`, counted in `resolution` sub-intervals. The oldest sub-interval is weighted by
    /// how much of it remains in the window. With one sub-interval, this is the two-counter form
    /// (Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017).
    SlidingWindow,
    /// As a fixed window, but its windows are spans of the calendar in a time zone: months, weeks, days of 23 to 25 hours.
    CalendarWindow,
    /// At most `capacity` slots are held at the same time. A call holds its count of slots until it releases them, or until its
    /// lease ends (C. Gray, D. Cheriton, "Leases: an efficient fault-tolerant mechanism for distributed file cache
    /// consistency", SOSP 1989).
    Concurrency,
    /// Allows every call on a key, unless the key is [blocked](crate::Limiter::block). Calls take nothing from it. See
    /// [`Limit::gate`].
    Gate,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Self] = &[
        Self::TokenBucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::CalendarWindow,
        Self::Concurrency,
        Self::Gate,
    ];

    /// The name used in limits files and in SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::CalendarWindow => "calendar_window",
            Self::Concurrency => "concurrency",
            Self::Gate => "gate",
        }
    }

    /// Whether this kind supports reservations, which take tokens before they are available. A call that reserves may also
    /// name gates; nothing is reserved from them.
    pub const fn can_reserve(self) -> bool {
        match self {
            Self::TokenBucket | Self::FixedWindow | Self::CalendarWindow | Self::Gate => true,
            Self::SlidingWindow | Self::Concurrency => false,
        }
    }

    /// Whether the option with this name applies to this kind: `rate`, `period`, `every`, `zone`, `anchor`, `capacity`,
    /// `max_reserved`, `start`, `resolution`, `shards` or `lease`. None applies to a gate.
    pub fn has_option(self, option: &str) -> bool {
        match option {
            _ if self == Self::Gate => false,
            "rate" | "shards" => self != Self::Concurrency,
            "period" => !matches!(self, Self::CalendarWindow | Self::Concurrency),
            "every" | "zone" | "anchor" => self == Self::CalendarWindow,
            "lease" => self == Self::Concurrency,
            "capacity" => self != Self::SlidingWindow,
            "max_reserved" => self.can_reserve(),
            "start" => matches!(self, Self::FixedWindow | Self::SlidingWindow),
            "resolution" => matches!(self, Self::SlidingWindow),
            _ => true,
        }
    }

    /// The first option that is set but does not apply to this kind.
    pub(crate) fn misplaced(self, options: &Options) -> Option<&'static str> {
        let set = [
            ("capacity", options.capacity.is_some()),
            ("max_reserved", options.max_reserved.is_some()),
            ("start", options.start.is_some()),
            ("resolution", options.resolution.is_some()),
            ("shards", options.shards.is_some()),
            ("zone", options.zone.is_some()),
            ("anchor", options.anchor.is_some()),
        ];
        set.into_iter().find(|(name, set)| *set && !self.has_option(name)).map(|(name, _)| name)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Kind {
    type Err = InvalidLimit;

    /// Parses the name that [`as_str`](Self::as_str) returns.
    fn from_str(name: &str) -> Result<Self, InvalidLimit> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
            InvalidLimit::new(format!("unknown kind \"{name}\"; the kinds are {}", names.join(", ")))
        })
    }
}

/// Marker types for [`LimitBuilder`], which offers only the options of its kind.
pub mod kinds {
    /// Marks a builder for a [token bucket](crate::Kind::TokenBucket).
    #[derive(Clone, Copy, Debug)]
    pub enum TokenBucket {}

    /// Marks a builder for a [fixed window](crate::Kind::FixedWindow).
    #[derive(Clone, Copy, Debug)]
    pub enum FixedWindow {}

    /// Marks a builder for a [sliding window](crate::Kind::SlidingWindow).
    #[derive(Clone, Copy, Debug)]
    pub enum SlidingWindow {}

    /// Marks a builder for a [calendar window](crate::Kind::CalendarWindow).
    #[derive(Clone, Copy, Debug)]
    pub enum CalendarWindow {}

    /// Marks a builder for a [concurrency limit](crate::Kind::Concurrency).
    #[derive(Clone, Copy, Debug)]
    pub enum Concurrency {}
}

use kinds::{CalendarWindow, Concurrency, FixedWindow, SlidingWindow, TokenBucket};

/// The length of a lease, unless the limit gives one.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// Builds a limit. It offers only the options of its kind.
///
/// Create one with [`Limit::token_bucket`], [`Limit::fixed_window`], [`Limit::sliding_window`], [`Limit::calendar`] or
/// [`Limit::concurrency`]. [`build`](Self::build) checks the numbers. [`Limits::define`](crate::Limits::define) also accepts a
/// builder.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct LimitBuilder<K> {
    options: Options,
    kind: PhantomData<K>,
}

impl Limit {
    /// A token bucket: it refills continuously at `rate` tokens per `period`, up to a capacity (default: `rate`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let limit = pg_limiter::Limit::token_bucket(10, Duration::from_secs(60)).capacity(20).build()?;
    /// assert_eq!(limit.capacity(), 20.0);
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub fn token_bucket(rate: impl Into<Tokens>, period: Duration) -> LimitBuilder<TokenBucket> {
        LimitBuilder::new(Kind::TokenBucket, rate.into().get(), period)
    }

    /// A fixed window: `rate` tokens arrive at the start of each window of length `period`. Unused tokens roll over, up to a
    /// capacity (default: `rate`).
    ///
    /// ```
    /// # use std::time::Duration;
    /// let day = Duration::from_secs(86_400);
    /// let limit = pg_limiter::Limit::fixed_window(100, day).start(Duration::from_secs(7 * 3600)).build()?;
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub fn fixed_window(rate: impl Into<Tokens>, period: Duration) -> LimitBuilder<FixedWindow> {
        LimitBuilder::new(Kind::FixedWindow, rate.into().get(), period)
    }

    /// A sliding window: at most `rate` tokens in the last `period`, which is counted in `resolution` sub-intervals. The oldest
    /// one is weighted by how much of it remains in the window, as if its calls were evenly spread. In any span that is one
    /// sub-interval shorter than the period, at most `rate` tokens are allowed. In a whole period, more than `rate` but less
    /// than twice `rate` can be allowed if calls crowd at the end of a sub-interval.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let limit = pg_limiter::Limit::sliding_window(100, Duration::from_secs(3600)).resolution(12).build()?;
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub fn sliding_window(rate: impl Into<Tokens>, period: Duration) -> LimitBuilder<SlidingWindow> {
        LimitBuilder::new(Kind::SlidingWindow, rate.into().get(), period)
    }

    /// A concurrency limit: at most `slots` of a key, 1 to 1000, are held at the same time. Take them with
    /// [`Limiter::acquire`](crate::Limiter::acquire). A holder that dies frees its slots when its lease ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let limit = pg_limiter::Limit::concurrency(3).lease(Duration::from_secs(60)).build()?;
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub fn concurrency(slots: u32) -> LimitBuilder<Concurrency> {
        LimitBuilder::new(Kind::Concurrency, slots.into(), DEFAULT_LEASE)
    }

    /// A calendar window: `rate` tokens arrive at the start of each span of the calendar, such as a month. Unused tokens roll
    /// over, up to a capacity (default: `rate`). The server's time zone data decides when a span starts.
    ///
    /// ```
    /// use pg_limiter::{Calendar, Limit};
    ///
    /// // A budget that is renewed with the subscription, on the last day of each month.
    /// let limit = Limit::calendar(1_000_000, Calendar::months(1)).zone("Europe/Berlin").anchor("2026-01-31").build()?;
    /// assert_eq!(limit.to_string(), "calendar_window, 1000000 per 1 month, zone Europe/Berlin, anchor 2026-01-31");
    /// # Ok::<(), pg_limiter::InvalidLimit>(())
    /// ```
    pub fn calendar(rate: impl Into<Tokens>, every: Calendar) -> LimitBuilder<CalendarWindow> {
        let options = Options { every: Some(every), ..Options::new(Kind::CalendarWindow, rate.into().get(), Ok(0)) };
        LimitBuilder { options, kind: PhantomData }
    }
}

impl<K> LimitBuilder<K> {
    fn new(kind: Kind, rate: f64, period: Duration) -> Self {
        Self { options: Options::new(kind, rate, micros(period).ok_or(period)), kind: PhantomData }
    }

    /// The number of rows that each bucket is spread over, from 1 to 1000 (default: 1). Each row must have at least 1 token of
    /// the capacity; not for a concurrency limit. Use shards if many processes take from the same bucket at the same time: see
    /// [`Limit::recommended_shards`].
    pub const fn shards(mut self, rows: u32) -> Self {
        self.options.shards = Some(rows);
        self
    }

    /// Builds the limit.
    ///
    /// # Errors
    /// [`InvalidLimit`] if a number is out of range: see [`Limit`].
    pub fn build(self) -> Result<Limit, InvalidLimit> {
        self.options.check()
    }
}

impl LimitBuilder<TokenBucket> {
    /// The most tokens that the bucket holds, 0 or more (default: the rate). Use 0 for a limit that is only reserved from.
    pub fn capacity(mut self, tokens: impl Into<Tokens>) -> Self {
        self.options.capacity = Some(tokens.into().get());
        self
    }

    /// The most tokens that reservations may owe, 0 or more (default: no bound). With 0, no tokens can be owed.
    pub fn max_reserved(mut self, tokens: impl Into<Tokens>) -> Self {
        self.options.max_reserved = Some(tokens.into().get());
        self
    }
}

impl LimitBuilder<FixedWindow> {
    /// The most tokens that the bucket holds, 0 or more, including those rolled over (default: the rate).
    pub fn capacity(mut self, tokens: impl Into<Tokens>) -> Self {
        self.options.capacity = Some(tokens.into().get());
        self
    }

    /// The most tokens that reservations may owe, 0 or more (default: no bound). With 0, no tokens can be owed.
    pub fn max_reserved(mut self, tokens: impl Into<Tokens>) -> Self {
        self.options.max_reserved = Some(tokens.into().get());
        self
    }

    /// The start of the grid of windows, as an offset from the Unix epoch. Only its remainder modulo the period matters. The
    /// default is derived from name and key, so that the windows of many keys do not end at the same time.
    pub fn start(mut self, phase: Duration) -> Self {
        self.options.start = Some(micros(phase).ok_or(phase));
        self
    }
}

impl LimitBuilder<SlidingWindow> {
    /// The number of sub-intervals that the period is divided into, from 1 to 1000 (default: 1).
    pub const fn resolution(mut self, parts: u32) -> Self {
        self.options.resolution = Some(parts);
        self
    }

    /// The start of the grid of sub-intervals, as an offset from the Unix epoch (default: 0).
    pub fn start(mut self, phase: Duration) -> Self {
        self.options.start = Some(micros(phase).ok_or(phase));
        self
    }
}

impl LimitBuilder<Concurrency> {
    /// The time after which the slots of a holder that has died are free (default: 30 s). Long enough that a living holder
    /// can [renew](crate::Lease::renew) in time.
    pub fn lease(mut self, length: Duration) -> Self {
        self.options.period = micros(length).ok_or(length);
        self
    }
}

impl LimitBuilder<CalendarWindow> {
    /// The time zone of the calendar: the name of a time zone that the server knows, such as "Europe/Berlin" (default: "UTC").
    ///
    /// [`build`](Self::build) checks the form of the name. If the server does not know it, calls fail with
    /// [`Error::InvalidLimit`](crate::Error::InvalidLimit).
    pub fn zone(mut self, name: &str) -> Self {
        self.options.zone = Some(Given::cut(name));
        self
    }

    /// The local date, or date and time, at which a window starts: "2026-01-31" or "2026-01-31 09:00", in the years 1800 to
    /// 2199. The others start at whole multiples of the span before and after it: one month after 31 January is the end of
    /// February, two months after it 31 March. The default is 1970-01-01, for weeks Monday, 1970-01-05.
    pub fn anchor(mut self, date_time: &str) -> Self {
        self.options.anchor = Some(Given::cut(date_time));
        self
    }

    /// The most tokens that the bucket holds, 0 or more, including those rolled over (default: the rate).
    pub fn capacity(mut self, tokens: impl Into<Tokens>) -> Self {
        self.options.capacity = Some(tokens.into().get());
        self
    }

    /// The most tokens that reservations may owe, 0 or more (default: no bound). With 0, no tokens can be owed.
    pub fn max_reserved(mut self, tokens: impl Into<Tokens>) -> Self {
        self.options.max_reserved = Some(tokens.into().get());
        self
    }
}

impl<K> TryFrom<LimitBuilder<K>> for Limit {
    type Error = InvalidLimit;

    fn try_from(builder: LimitBuilder<K>) -> Result<Self, InvalidLimit> {
        builder.build()
    }
}
