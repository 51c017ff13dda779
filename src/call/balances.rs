use std::ops::Deref;

/// Balances in tokens, one for each item of the call, in its order. Negative while tokens are owed.
///
/// For a sliding window, the balance is what may still be used: its rate less what counts as used.
#[derive(Clone, Debug, PartialEq)]
pub struct Balances {
    tokens: Vec<f64>,
}

impl Balances {
    pub(crate) const fn new(tokens: Vec<f64>) -> Self {
        Self { tokens }
    }

    /// The smallest balance, as in [`Decision::remaining`](crate::Decision::remaining). For a call with one item, its balance.
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
