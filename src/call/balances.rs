use std::ops::Deref;

/// The balances in tokens, one for each item, in the order of the call. A balance is negative while tokens are owed.
///
/// For a sliding window, the balance is the rate minus the tokens that count as used.
#[derive(Clone, Debug, PartialEq)]
pub struct Balances {
    tokens: Vec<f64>,
}

impl Balances {
    pub(crate) const fn new(tokens: Vec<f64>) -> Self {
        Self { tokens }
    }

    /// Returns the smallest balance, as in [`Decision::remaining`](crate::Decision::remaining). For a call with one item, this
    /// is its balance.
    pub fn remaining(&self) -> f64 {
        self.tokens.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

impl Deref for Balances {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.tokens
    }
}
