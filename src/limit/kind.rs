//! The kinds of limits: their names, the options that apply to each, and builders that offer only these options.
//! The arithmetic of each kind is in a file in `sql/kinds/`.

use std::marker::PhantomData;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::InvalidLimit;
use crate::limit::length::micros;
use crate::limit::limit::Options;
use crate::limit::{Limit, Tokens};

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
    /// Allows every call on a key, unless the key is [blocked](crate::Limiter::block). Calls take nothing from it. See
    /// [`Limit::gate`].
    Gate,
}

impl Kind {
    /// All kinds.
    pub const ALL: &[Self] = &[Self::TokenBucket, Self::FixedWindow, Self::SlidingWindow, Self::Gate];

    /// The name used in limits files and in SQL.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::Gate => "gate",
        }
    }

    /// The kind that the deciding functions know. A gate is a token bucket that owes one token for each microsecond of a
    /// block.
    pub(crate) const fn decided_as(self) -> &'static str {
        match self {
            Self::Gate => Self::TokenBucket.as_str(),
            other => other.as_str(),
        }
    }

    /// Whether this kind supports reservations, which take tokens before they are available. A call that reserves may also
    /// name gates; nothing is reserved from them.
    pub const fn can_reserve(self) -> bool {
        match self {
            Self::TokenBucket | Self::FixedWindow | Self::Gate => true,
            Self::SlidingWindow => false,
        }
    }

    /// Whether the option with this name applies to this kind: `rate`, `period`, `capacity`, `max_reserved`, `start`,
    /// `resolution` or `shards`. None applies to a gate.
    pub fn has_option(self, option: &str) -> bool {
        match option {
            "capacity" | "max_reserved" => matches!(self, Self::TokenBucket | Self::FixedWindow),
            "start" => matches!(self, Self::FixedWindow | Self::SlidingWindow),
            "resolution" => matches!(self, Self::SlidingWindow),
            _ => !matches!(self, Self::Gate),
        }
    }

    /// The first option that is set but does not apply to this kind.
    pub(crate) fn misplaced(self, options: &Options) -> Option<&'static str> {
        let set = [
            ("capacity", options.capacity.is_some()),
            ("max_reserved", options.max_reserved.is_some()),
            ("start", options.start.is_some()),
            ("resolution", options.resolution.is_some()),
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
}

use kinds::{FixedWindow, SlidingWindow, TokenBucket};

/// Builds a limit. It offers only the options of its kind.
///
/// Create one with [`Limit::token_bucket`], [`Limit::fixed_window`] or [`Limit::sliding_window`]. [`build`](Self::build)
/// checks the numbers. [`Limits::define`](crate::Limits::define) also accepts a builder.
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
}

impl<K> LimitBuilder<K> {
    fn new(kind: Kind, rate: f64, period: Duration) -> Self {
        Self { options: Options::new(kind, rate, micros(period).ok_or(period)), kind: PhantomData }
    }

    /// The number of rows that each bucket is spread over, from 1 to 1000 (default: 1). Each row must have at least 1 token of
    /// the capacity. Use shards if many processes take from the same bucket at the same time: see
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

impl<K> TryFrom<LimitBuilder<K>> for Limit {
    type Error = InvalidLimit;

    fn try_from(builder: LimitBuilder<K>) -> Result<Self, InvalidLimit> {
        builder.build()
    }
}
