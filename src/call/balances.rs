use std::ops::Deref;
use std::time::Duration;

use crate::call::LimitState;
use crate::call::decision::smallest_balance;

/// The balances in tokens, one for each item, in the order of the call. A balance is negative while tokens are owed.
///
/// For a sliding window, the balance is the rate minus the tokens that count as used.
#[derive(Clone, Debug, PartialEq)]
pub struct Balances {
    tokens: Vec<f64>,
    limits: Vec<LimitState>,
}

impl Balances {
    pub(crate) fn new(limits: Vec<LimitState>) -> Self {
        Self { tokens: limits.iter().map(|state| state.remaining).collect(), limits }
    }

    /// Returns the state of each limit, in the order of the call's items.
    pub fn limits(&self) -> &[LimitState] {
        &self.limits
    }

    /// Returns the limits for which this operation raised the use to `mark` or above: see [`LimitState::crossed`].
    pub fn crossed(&self, mark: f64) -> impl Iterator<Item = &LimitState> {
        self.limits.iter().filter(move |state| state.crossed(mark))
    }

    /// From a peek, returns the time until the buckets of all limits are full again, if no call takes tokens: the longest
    /// [`LimitState::full_in`]. `None` after other operations.
    pub fn full_in(&self) -> Option<Duration> {
        self.limits.iter().filter_map(|state| state.full_in).max()
    }

    /// Returns the smallest balance, as in [`Decision::remaining`](crate::Decision::remaining). For a call with one item, this
    /// is its balance.
    pub fn remaining(&self) -> f64 {
        smallest_balance(&self.limits)
    }
}

impl Deref for Balances {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.tokens
    }
}
