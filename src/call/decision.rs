use std::sync::Arc;
use std::time::Duration;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The call may go ahead now.
    Allowed,
    /// The call may go ahead after a wait: the tokens were taken before they are available.
    Reserved {
        /// The time to wait, in whole microseconds.
        wait: Duration,
    },
    /// The call was denied. No tokens were taken from any limit.
    Denied {
        /// The time until the same call would be allowed, if no other call takes tokens. Before that, it is denied.
        retry_after: Duration,
    },
}

impl Outcome {
    /// The name in traces and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Reserved { .. } => "reserved",
            Self::Denied { .. } => "denied",
        }
    }
}

/// The state of one limit of a call after the decision.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitState {
    /// The limit's name.
    pub limit: Arc<str>,
    /// The balance after the decision, in tokens. It is negative while tokens are owed. If the bucket has more than two
    /// [shards](crate::Limit::recommended_shards), it is an estimate from the rows that were read, unless this limit denied. A
    /// gate has no tokens: it is 0.
    pub remaining: f64,
    /// Whether this limit denied the call.
    pub denied: bool,
    /// The most tokens that the bucket holds; for a sliding window, its rate.
    pub capacity: f64,
    /// From a peek, the time until the bucket is full again if no call takes tokens, to the microsecond: 0 if it is full. The
    /// bucket of a sliding window is full when all counts have left the window. For a gate, it is the rest of the block. `None`
    /// after other operations.
    pub full_in: Option<Duration>,
    /// From a peek, the time until the present window of a fixed window ends. `None` for other kinds and after other
    /// operations.
    pub window_ends_in: Option<Duration>,
    /// The tokens that the call took.
    pub(crate) taken: f64,
    pub(crate) is_gate: bool,
}

/// The smallest balance. Gates have none, so they count only if there is no other limit.
pub(super) fn smallest_balance(limits: &[LimitState]) -> f64 {
    let balances = limits.iter().filter(|state| !state.is_gate).map(|state| state.remaining);
    let smallest = balances.fold(f64::INFINITY, f64::min);
    if smallest.is_finite() { smallest } else { 0.0 }
}

impl LimitState {
    /// Returns how much of the capacity is used after the decision: 0 for a full bucket, 1 for an empty one, and more than 1
    /// while tokens are owed. With a capacity of 0 it is 1. For a gate it is 1 while the key is blocked, or else 0.
    pub fn used_fraction(&self) -> f64 {
        if self.is_gate {
            return if self.denied { 1.0 } else { 0.0 };
        }
        if self.capacity > 0.0 { (self.capacity - self.remaining) / self.capacity } else { 1.0 }
    }

    /// Returns whether this call raised the use from below `mark` to `mark` or above, where `mark` is a fraction of the
    /// capacity: 0.8 for 80 %, 1.0 for an empty bucket.
    ///
    /// When the use passes a mark, this is `true` for exactly one call, over all processes, batches and transactions. So an
    /// alert that is written in the transaction of the call is written once. After a refill or a credit has lowered the use,
    /// the use can pass the mark again. A token bucket refills all the time, so its use hardly ever reaches 1: choose a lower
    /// mark, such as 0.99.
    ///
    /// If the bucket has [shards](crate::Limit::shards), the use is an estimate, so no call or several calls may report the
    /// mark. A repeated call with an [idempotency key](crate::Call::idempotency_key) gets its first answer again.
    pub fn crossed(&self, mark: f64) -> bool {
        // As in the decision: sums of fractions are not exact.
        let tolerance = 1e-9 + 1e-14 * self.capacity;
        let reaches = |remaining: f64| self.capacity - remaining >= mark * self.capacity - tolerance;
        reaches(self.remaining) && !reaches(self.remaining + self.taken)
    }
}

/// The decision on a call: allowed, reserved or denied.
///
/// ```
/// # use pg_limiter::{Decision, Outcome};
/// # fn answer(decision: Decision) {
/// match decision.outcome() {
///     Outcome::Allowed => println!("go, {} left", decision.remaining()),
///     Outcome::Reserved { wait } => println!("go in {wait:?}"),
///     Outcome::Denied { retry_after } => println!("denied, retry in {retry_after:?}"),
///     _ => println!("no"), // Treat an unknown outcome as a denial.
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a decision limits nothing unless it is checked: match its outcome, or call enforce()"]
pub struct Decision {
    pub(crate) outcome: Outcome,
    pub(crate) limits: Vec<LimitState>,
}

impl Decision {
    /// Returns the outcome: allowed, reserved or denied.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Returns whether the call may go ahead now.
    pub const fn is_allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Allowed)
    }

    /// Returns whether the call may go ahead after a [wait](Self::wait).
    pub const fn is_reserved(&self) -> bool {
        matches!(self.outcome, Outcome::Reserved { .. })
    }

    /// Returns whether the call was denied.
    pub const fn is_denied(&self) -> bool {
        matches!(self.outcome, Outcome::Denied { .. })
    }

    /// Returns the time until the same call would be allowed, if this call was denied; otherwise `None`.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Denied { retry_after } => Some(retry_after),
            Outcome::Allowed | Outcome::Reserved { .. } => None,
        }
    }

    /// Returns the time to wait before going ahead, if tokens were reserved; otherwise `None`.
    pub const fn wait(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Reserved { wait } => Some(wait),
            Outcome::Allowed | Outcome::Denied { .. } => None,
        }
    }

    /// Returns the smallest balance of the call's limits, in tokens. It is negative while tokens are owed. For a limit with
    /// more than two shards it is an estimate, unless the limit denied; [`peek`](crate::Limiter::peek) is exact. Gates are left
    /// out; it is 0 for a call on gates only.
    pub fn remaining(&self) -> f64 {
        smallest_balance(&self.limits)
    }

    /// Returns the state of each limit, in the order of the call's items.
    pub fn limits(&self) -> &[LimitState] {
        &self.limits
    }

    /// Returns the limits for which this call raised the use to `mark` or above: see [`LimitState::crossed`].
    ///
    /// ```no_run
    /// # async fn f(limiter: pg_limiter::Limiter, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// let decision = limiter.within(&mut tx).limit(("emails_per_month", "u1")).await?;
    /// for state in decision.crossed(0.8) {
    ///     let alert = "INSERT INTO alerts (user_id, what) VALUES ('u1', $1)"; // Commits with the tokens, once.
    ///     sqlx::query(alert).bind(&*state.limit).execute(&mut *tx).await?;
    /// }
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub fn crossed(&self, mark: f64) -> impl Iterator<Item = &LimitState> {
        self.limits.iter().filter(move |state| state.crossed(mark))
    }

    /// Returns the names of the limits that denied the call, each once, in alphabetical order.
    pub fn denied_by(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.limits.iter().filter(|state| state.denied).map(|state| &*state.limit).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// Permission to go ahead, from [`Decision::enforce`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Permit {
    /// For a reservation, the time to wait before going ahead.
    pub wait: Option<Duration>,
    /// The smallest balance of the call's limits, in tokens.
    pub remaining: f64,
}
