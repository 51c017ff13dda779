use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Go ahead now.
    Allowed,
    /// Go ahead, but only after a wait: the tokens were taken before they are there.
    Reserved {
        /// How long to wait, in whole microseconds.
        wait: Duration,
    },
    /// Nothing was taken, from no limit.
    Denied {
        /// If nobody else consumes, the same call is allowed after this time and not before.
        retry_after: Duration,
    },
}

impl Outcome {
    /// In a word, for traces and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Reserved { .. } => "reserved",
            Self::Denied { .. } => "denied",
        }
    }
}

/// How one limit of the call stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitState {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The balance after the decision, in tokens; negative while tokens are owed. Of a bucket with more than two
    /// [shards](crate::Limit::recommended_shards) that was not denied: estimated from the rows looked at.
    pub remaining: f64,
    /// Whether this limit refused.
    pub refused: bool,
}

/// The answer to a call: allowed, reserved or denied.
///
/// ```
/// # use pg_limiter::{Decision, Outcome};
/// # fn answer(decision: Decision) {
/// match decision.outcome() {
///     Outcome::Allowed => println!("go, {} left", decision.remaining()),
///     Outcome::Reserved { wait } => println!("go in {wait:?}"),
///     Outcome::Denied { retry_after } => println!("come back in {retry_after:?}"),
///     _ => println!("no"), // What is not known yet is no permit.
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a decision that nobody looks at limits nothing: match its outcome, or enforce() it"]
pub struct Decision {
    pub(crate) outcome: Outcome,
    pub(crate) limits: Vec<LimitState>,
}

impl Decision {
    /// Allowed, reserved or denied.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether the call may go ahead now.
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }

    /// Whether the call was refused.
    pub const fn is_denied(&self) -> bool {
        matches!(self.outcome, Outcome::Denied { .. })
    }

    /// How long to wait: until reserved tokens are there, or until the call would be allowed. `None` if allowed.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Allowed => None,
            Outcome::Reserved { wait } => Some(wait),
            Outcome::Denied { retry_after } => Some(retry_after),
        }
    }

    /// What is left, in tokens: the smallest balance of the limits asked. Negative while tokens are owed. Estimated where a
    /// limit has more than two shards, unless it refused; [`peek`](crate::Limiter::peek) is exact.
    pub fn remaining(&self) -> f64 {
        self.limits.iter().map(|state| state.remaining).fold(f64::INFINITY, f64::min)
    }

    /// How each limit stands, in the order of the call's items.
    pub fn limits(&self) -> &[LimitState] {
        &self.limits
    }

    /// The names of the limits that refused, each once, in alphabetical order.
    pub fn denied_by(&self) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.limits.iter().filter(|state| state.refused).map(|state| &*state.limit).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Turns a denial into an error, so that `?` leaves the caller's transaction and rolls it back.
    ///
    /// # Errors
    /// [`Error::Denied`]. A reservation is no denial: its wait stands in the permit.
    pub fn enforce(self) -> Result<Permit, Error> {
        match self.outcome {
            Outcome::Allowed => Ok(Permit { wait: None, remaining: self.remaining() }),
            Outcome::Reserved { wait } => Ok(Permit { wait: Some(wait), remaining: self.remaining() }),
            Outcome::Denied { retry_after } => Err(Error::Denied(Denied {
                retry_after,
                remaining: self.remaining(),
                limits: self.denied_by().into_iter().map(Into::into).collect(),
            })),
        }
    }
}

/// Leave to go ahead, from [`Decision::enforce`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Permit {
    /// For a reservation: how long to wait before going ahead.
    pub wait: Option<Duration>,
    /// The smallest balance of the limits asked, in tokens.
    pub remaining: f64,
}

/// A denial as an error, from [`Decision::enforce`]. It names the limits, never a key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Denied {
    /// If nobody else consumes, the same call is allowed after this time and not before.
    pub retry_after: Duration,
    /// The smallest balance of the limits asked, in tokens.
    pub remaining: f64,
    /// The limits that refused, each once, in alphabetical order.
    pub limits: Vec<Arc<str>>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate limit {} exceeded; retry after {:?}", self.limits.join(", "), self.retry_after)
    }
}

impl std::error::Error for Denied {}
