use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::call::{Decision, LimitState, Outcome, Permit};
use crate::error::Error;

/// A denial as an error, from [`Decision::enforce`]. It names the limits, never a key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Denied {
    /// The time until the same call would be allowed, if no other call takes tokens. Before that, it is denied.
    pub retry_after: Duration,
    /// The smallest balance of the call's limits, in tokens.
    pub remaining: f64,
    /// The limits that denied the call, each once, in alphabetical order.
    pub limits: Vec<Arc<str>>,
    /// The states of these limits, as far as they are known.
    #[cfg_attr(not(feature = "tower"), allow(dead_code, reason = "only responses describe them"))]
    pub(crate) states: Vec<LimitState>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rate limit {} exceeded; retry after {:?}", self.limits.join(", "), self.retry_after)
    }
}

impl std::error::Error for Denied {}

impl Decision {
    /// Turns a denial into an error, so that `?` leaves the caller's transaction and rolls it back.
    ///
    /// # Errors
    /// [`Error::Denied`]. A reservation is not a denial: its permit has the time to wait.
    pub fn enforce(self) -> Result<Permit, Error> {
        match self.outcome {
            Outcome::Allowed => Ok(Permit { wait: None, remaining: self.remaining() }),
            Outcome::Reserved { wait } => Ok(Permit { wait: Some(wait), remaining: self.remaining() }),
            Outcome::Denied { retry_after } => Err(Error::Denied(Denied {
                retry_after,
                remaining: self.remaining(),
                limits: self.denied_by().into_iter().map(Into::into).collect(),
                states: self.limits.into_iter().filter(|state| state.denied).collect(),
            })),
        }
    }
}
